//! Products of one row in bytes, with the row that the end of a block or a gate leaves as integers.

use super::adapter::Adapter;
use super::bench::Bench;
use super::block::Block;
use super::case::{Case, Combined, Needs, Once};
use super::inputs::{values, wide};
use super::rms_norm::{EPS, norm};
use super::tolerance::{BYTES, PRODUCT, SUMS};
use super::weight;
use crate::base::config::Activation;
use crate::base::formats::GgmlType;
use crate::gpu::GpuError;
use crate::ops::block_end::{self, End, Next};
use crate::ops::matvec::integers::Integers;
use crate::ops::matvec::{self, Down};
use crate::ops::rms_norm::Norm;
use crate::ops::{Unfinished, cached_gated};
use crate::reference::{gated, linear, rms_norm};

pub const CASES: [Case; 2] = [
    Case {
        op: "matvec",
        name: "one row in bytes",
        needs: Needs::Tiles,
        variants: super::PACKED,
        shapes: &Once(each_format),
    },
    Case {
        op: "matvec",
        name: "one row, in bytes",
        needs: Needs::Any,
        variants: super::PLAIN,
        shapes: &Combined { small: &[], more: combinations, check: product },
    },
];

#[derive(Clone, Debug)]
struct Shape {
    /// Formats of the matrices: the first has 131 rows, a second 67.
    types: Vec<GgmlType>,
    k: usize,
    softcap: Option<f32>,
}

/// Formats that are multiplied in bytes.
fn formats() -> Vec<GgmlType> {
    GgmlType::SUPPORTED.into_iter().filter(|ty| ty.byte_reader().is_some()).collect()
}

fn each_format(b: &mut Bench) -> Result<(), GpuError> {
    formats().into_iter().try_for_each(|ty| product(b, &Shape { types: vec![ty], k: 1536, softcap: None }))
}

/// Alone and side by side.
fn combinations() -> Vec<Shape> {
    let (formats, mut shapes) = (formats(), Vec::new());
    for (i, ty) in formats.iter().copied().enumerate() {
        let types = vec![ty, formats[(i + 1) % formats.len()]];
        for (k, softcap) in [(256, None), (1536, Some(300.0)), (GATED, None), (5376, None)] {
            shapes.push(Shape { types: types.clone(), k, softcap });
        }
    }
    shapes
}

/// Columns of the row that a gate leaves; a norm leaves the others.
const GATED: usize = 2304;

/// The products under a softcap, and beside them `z = x·Aᵀ` of an adapter.
fn product(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let &Shape { k, softcap, .. } = shape;
    let (rank, name) = (4, format!("{shape:?}"));
    let (row, integers) = (b.output(k, 1)?, Integers::new(b.gpu, k)?);
    let x = match k {
        GATED => of_gate(b, &row, &integers)?,
        _ => of_norm(b, &row, &integers)?,
    };
    let (mut matrices, mut truths) = (Vec::new(), Vec::new());
    for (i, ty) in shape.types.iter().enumerate() {
        let (matrix, truth) = weight::random(b.gpu, *ty, [131, 67][i], k, i == 0 && k == 256)?;
        matrices.push(matrix);
        truths.extend(truth);
    }
    let (n, a) = (truths.len() / k, values(3, rank * k));
    let (held, y) = (b.param(k, &a)?, b.output(200 + rank, 1)?);
    b.run(|rec| {
        let (matrices, down) = (matrices.iter().collect::<Vec<_>>(), Down { a: &held, z_offset: 200 });
        let (to, from) = (y.view(), row.view());
        matvec::forward_integers(rec, to, from, &integers, &matrices, Some(&down), softcap);
    })?;
    let cap = |y: f64| softcap.map_or(y, |cap| f64::from(cap) * (y / f64::from(cap)).tanh());
    let expected = linear::forward(&x, &truths, k).into_iter().map(cap).collect();
    b.expect_columns(&name, &y, 0, n, expected, BYTES);
    b.expect_columns(&format!("{name}: z"), &y, 200, rank, linear::forward(&x, &wide(&a), k), PRODUCT);
    b.expect(format!("{name}: x"), &row, x, SUMS);
    Ok(())
}

/// The norm behind a block leaves the row.
fn of_norm(b: &mut Bench, row: &Block, integers: &Integers) -> Result<Vec<f64>, GpuError> {
    let k = row.width;
    let (stream, weight) = (values(1, k), values(2, k));
    let (zero, before) = (b.input(k, &vec![0.0; k])?, b.in_out(k, &stream)?);
    let (norm, none) = (norm(b, &weight)?, Norm::identity(k));
    b.run(|rec| {
        let next = Some(Next { norm: &norm, integers: Some(integers) });
        let (zero, end) = (Unfinished::of(zero.rows(), None), End { next, ..End::of(&none) });
        block_end::forward(rec, before.rows(), row.rows(), &zero, end, 1);
    })?;
    b.expect("stream", &before, wide(&stream), SUMS);
    Ok(rms_norm::forward(&wide(&stream), Some(&wide(&weight)), k, f64::from(EPS)))
}

/// A gated product with an adapter leaves the row.
fn of_gate(b: &Bench, row: &Block, integers: &Integers) -> Result<Vec<f64>, GpuError> {
    let (k, rank) = (row.width, 16);
    let (gate, up) = (values(4, k), values(5, k));
    let adapter = Adapter::new(b, rank, &[k], 1)?;
    let x = gated::forward(&adapter.added(&wide(&gate), 0), &wide(&up), Activation::Silu);
    let (gate, up) = (b.input(k + rank, &adapter.beside(&gate, k))?, b.input(k, &up)?);
    b.run(|rec| {
        let gate = Unfinished::of(gate.rows(), adapter.up(k));
        cached_gated::forward(rec, row.rows(), &gate, up.view(), Activation::Silu, 1, Some(integers));
    })?;
    Ok(x)
}
