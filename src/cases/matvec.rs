//! Products of a few rows with weights, alone and side by side, and with an adapter's `A`; of gated inputs, and of the stream behind a block.

use super::adapter::Adapter;
use super::bench::Bench;
use super::case::{Case, Needs, Once, Shapes};
use super::inputs::{part, plus, scaled, values, wide, widths};
use super::product::columns;
use super::rms_norm::{EPS, norm};
use super::tolerance::{PRODUCT, SUMS};
use super::weight;
use crate::base::config::Activation;
use crate::base::formats::GgmlType;
use crate::gpu::GpuError;
use crate::ops::block_end::{self, End};
use crate::ops::matvec::{self, Down, Ended, Gated};
use crate::ops::{Unfinished, Weight};
use crate::reference::{gated, linear, rms_norm};

pub const CASES: [Case; 3] = [
    Case {
        op: "matvec",
        name: "a few rows in every format",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Once(every_format),
    },
    Case {
        op: "matvec",
        name: "a gated input",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes {
            small: &[Gate { ty: GgmlType::Q4_K, rows: 2, rank: 8, activation: Activation::Gelu, n: 67 }],
            more: &[],
            check: gated_product,
        },
    },
    Case {
        op: "matvec",
        name: "the stream behind a block",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes {
            small: &[(GgmlType::F16, 1028, 8, 67)],
            more: &[
                (GgmlType::F32, 100, 0, 131),
                (GgmlType::Q4_K, 1536, 16, 255),
                (GgmlType::Q6_K, 2560, 12, 67),
            ],
            check: ended_product,
        },
    },
];

/// A product of a few rows.
#[derive(Clone, Debug)]
pub struct Call {
    rows: usize,
    /// `K`.
    cols: usize,
    /// Format and `N` of each matrix.
    matrices: Vec<(GgmlType, usize)>,
    /// Rank of the adapter.
    rank: usize,
    /// Whether the matrices lie in pieces.
    tiled: bool,
    softcap: Option<f32>,
}

impl Call {
    /// A product with one matrix, or with several side by side.
    fn new(rows: usize, cols: usize, matrices: &[(GgmlType, usize)], rank: usize) -> Call {
        Call { rows, cols, matrices: matrices.to_vec(), rank, tiled: false, softcap: None }
    }
}

/// A few rows with weights of each of `formats`, alone and side by side, and shapes of the kernels themselves.
pub fn few_rows(formats: &[GgmlType]) -> Vec<Call> {
    let mut calls = Vec::new();
    for (i, ty) in formats.iter().copied().enumerate() {
        let k = widths(ty);
        calls.push(Call::new(1, k[2], &[(ty, 131)], 4));
        // Every number of rows with some format, with and without tiles and softcap.
        calls.push(Call {
            tiled: i % 2 == 0,
            softcap: [None, Some(3.0)][i % 2],
            ..Call::new([2, 3, 5, 8][i % 4], k[i % 3], &[(ty, 67)], 4 * (i % 3))
        });
        // Side by side, of the same and of different formats, in one dispatch and in several.
        calls.push(match i % 2 {
            0 => Call::new(1, 512, &[(ty, 5), (GgmlType::Q6_K, 64), (ty, 33)], 12),
            _ => Call { tiled: true, ..Call::new(1, 512, &[(ty, 128), (GgmlType::F16, 130)], 4) },
        });
    }
    calls.push(Call::new(1, 256, &[(GgmlType::Q4_K, 1)], 0));
    // Wide enough for every number of threads per row.
    calls.extend([128, 512, 1024, 1536, 2048].map(|k| Call::new(3, k, &[(GgmlType::F16, 5)], 4)));
    // More workgroups than one dimension holds: 32 768, of 32 rows each.
    calls.push(Call::new(1, 32, &[(GgmlType::Q8_0, 1_050_000)], 4));
    calls
}

/// Rows that 32 and 64 threads share, with and without remaining slices, and `A` wider than four rounds of a workgroup.
pub fn wide_rows(formats: &[GgmlType]) -> Vec<Call> {
    let mut calls = Vec::new();
    for ty in formats.iter().copied() {
        let sizes = [(1, 768), (3, 1536), (1, 4096)];
        calls.extend(sizes.map(|(rows, k)| Call::new(rows, k, &[(ty, 5), (GgmlType::Q4_K, 2)], 4)));
    }
    calls.push(Call::new(2, 9216, &[(GgmlType::Q6_K, 3)], 8));
    calls
}

/// Gated inputs of products with weights of each of `formats`, each with one of the activations.
pub fn gates(formats: &[GgmlType]) -> Vec<Gate> {
    let gate = |(i, ty): (usize, &GgmlType)| {
        let activation = Activation::ALL[i % Activation::ALL.len()];
        Gate { ty: *ty, rows: [1, 2, 5, 8][i % 4], rank: [0, 4, 16][i % 3], activation, n: 131 }
    };
    formats.iter().enumerate().map(gate).collect()
}

fn every_format(b: &mut Bench) -> Result<(), GpuError> {
    for (i, ty) in GgmlType::SUPPORTED.into_iter().enumerate() {
        let call = Call::new([1, 2, 3, 5][i % 4], columns(ty), &[(ty, 67)], 4);
        product(b, &Call { softcap: [None, Some(3.0)][i % 2], ..call })?;
    }
    Ok(())
}

/// `y = 0.37·x·Wᵀ` under a softcap, and `z = x·Aᵀ` some columns after it; nothing between them is written.
///
/// # Errors
/// The device's error, as of the others.
pub fn product(b: &mut Bench, call: &Call) -> Result<(), GpuError> {
    let &Call { rows, cols: k, rank, tiled, softcap, .. } = call;
    // Rows before the first belong to another pass.
    let (before, scale) = (2, 0.37);
    let x = values(1, (before + rows) * k);
    let mine = wide(&x[before * k..]);
    let each = call.matrices.iter().map(|&(ty, n)| weight::random(b.gpu, ty, n, k, tiled));
    let (weights, truths): (Vec<Weight>, Vec<Vec<f64>>) =
        each.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    let n: usize = call.matrices.iter().map(|(_, n)| n).sum();
    let mut expected = scaled(scale, &linear::forward(&mine, &truths.concat(), k));
    // The capped value is rounded before, and tanh is exact only relative to 1.
    let size = softcap.map_or(0.0, |cap| expected.iter().fold(f64::from(cap), |m, y| m.max(y.abs())));
    if let Some(cap) = softcap.map(f64::from) {
        expected.iter_mut().for_each(|y| *y = cap * (*y / cap).tanh());
    }
    let x = b.input_within((4, 8), k, &x)?;
    let z_at = n.next_multiple_of(4) + 8;
    let y = b.output_within((4, 4), z_at + rank, rows)?;
    let a = values(2, rank.max(4) * k);
    let held = b.param(k, &a)?;
    let weights: Vec<&Weight> = weights.iter().collect();
    b.run(|rec| {
        let down = (rank > 0).then(|| Down { a: &held, z_offset: 4 + z_at });
        matvec::forward(rec, y.view(), x.view(), before, &weights, down.as_ref(), scale, softcap, rows);
    })?;
    let types: Vec<String> = call.matrices.iter().map(|(ty, n)| format!("{n} of {}", ty.name())).collect();
    let name = format!("T={rows} K={k} N={types:?} R={rank} tiled={tiled} softcap={softcap:?}");
    b.expect_columns(&name, &y, 0, n, expected, PRODUCT.around(size));
    b.expect_columns_kept(&format!("{name}: between y and z"), &y, n, z_at - n);
    if rank > 0 {
        b.expect_columns(
            &format!("{name}: z"),
            &y,
            z_at,
            rank,
            linear::forward(&mine, &wide(&a), k),
            PRODUCT,
        );
    }
    Ok(())
}

/// A product of a gated input of 256 columns.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    ty: GgmlType,
    rows: usize,
    /// Rank of both adapters.
    rank: usize,
    activation: Activation,
    n: usize,
}

/// A product whose workgroups compute its gated input, with both adapters.
///
/// # Errors
/// As of [`product`].
pub fn gated_product(b: &mut Bench, gate: &Gate) -> Result<(), GpuError> {
    let &Gate { ty, rows, rank, activation, n } = gate;
    let (width, name) = (256, format!("{gate:?}"));
    let (gate, inputs) = (values(2, rows * width), values(3, rows * 3 * width));
    let a = values(4, rank.max(4) * width);
    let adapter = Adapter::new(b, rank, &[width], rows)?;
    let middle = part(&wide(&inputs), 3 * width, width, width);
    let x = gated::forward(&adapter.added(&wide(&gate), 0), &middle, activation);
    let (weight, truth) = b.weight(ty, n, width)?;
    let gate = b.input(width + rank, &adapter.beside(&gate, width))?;
    let (inputs, held) = (b.input(3 * width, &inputs)?, b.param(width, &a)?);
    let y = b.output(n + 1 + rank, rows)?;
    b.run(|rec| {
        let gate = &Unfinished::of(gate.rows(), adapter.up(width));
        let x = Gated { gate, up: inputs.rows().from(width), activation };
        let down = (rank > 0).then(|| Down { a: &held, z_offset: n + 1 });
        matvec::forward_gated(rec, y.view(), &x, &weight, down.as_ref(), rows);
    })?;
    b.expect_columns(&name, &y, 0, n, linear::forward(&x, &truth, width), SUMS);
    if rank > 0 {
        let z = linear::forward(&x, &wide(&a), width);
        b.expect_columns(&format!("{name}: z"), &y, n + 1, rank, z, SUMS);
    }
    Ok(())
}

/// A product whose workgroups compute the stream behind a block, and the end of the next block, which finds that stream where the product
/// left it: format, K, rank, N.
fn ended_product(
    b: &mut Bench,
    &(ty, width, rank, n): &(GgmlType, usize, usize, usize),
) -> Result<(), GpuError> {
    let name = format!("{} K={width} R={rank} N={n}", ty.name());
    let (y, stream) = (values(1, width), values(2, width));
    let (weight, a) = (values(3, width), values(4, rank.max(4) * width));
    let adapter = Adapter::new(b, rank, &[width], 1)?;
    let product = adapter.added(&wide(&y), 0);
    let normed = rms_norm::forward(&product, Some(&wide(&weight)), width, f64::from(EPS));
    let x = plus(&wide(&stream), 1.0, &normed);
    let (matrix, truth) = b.weight(ty, n, width)?;
    let (y, stream) = (b.input(width + rank, &adapter.beside(&y, width))?, b.in_out(width, &stream)?);
    let (after, last) = (b.output(width, 1)?, b.output(width, 1)?);
    let (norm, held, result) = (norm(b, &weight)?, b.param(width, &a)?, b.output(n + 1 + rank, 1)?);
    assert!(matvec::takes_ended(1, &norm, &matrix), "{name}");
    b.run(|rec| {
        let y = &Unfinished::of(y.rows(), adapter.up(width));
        let x = Ended { y, norm: &norm, stream: stream.rows(), after: after.rows() };
        let down = (rank > 0).then(|| Down { a: &held, z_offset: n + 1 });
        matvec::forward_ended(rec, result.view(), &x, &matrix, down.as_ref());
        let end = End { scale: 0.5, ended: true, ..End::of(&norm) };
        block_end::forward(rec, last.rows(), after.rows(), y, end, 1);
    })?;
    b.expect_columns(&name, &result, 0, n, linear::forward(&x, &truth, width), SUMS);
    if rank > 0 {
        let z = linear::forward(&x, &wide(&a), width);
        b.expect_columns(&format!("{name}: z"), &result, n + 1, rank, z, SUMS);
    }
    b.expect(format!("{name}: next stream"), &last, scaled(0.5, &plus(&x, 1.0, &normed)), SUMS);
    b.expect(format!("{name}: stream"), &after, x, SUMS);
    Ok(())
}
