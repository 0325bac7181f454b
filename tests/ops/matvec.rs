//! Products of a few rows with weights of every format, alone and side by side, and with an adapter's `A`.

use rullama_train::base::config::Activation;
use rullama_train::base::formats::GgmlType;
use rullama_train::cases::block::POISON;
use rullama_train::gpu::Gpu;
use rullama_train::ops::Unfinished;
use rullama_train::ops::Weight;
use rullama_train::ops::block_end::{self, End, Next};
use rullama_train::ops::cached_gated;
use rullama_train::ops::matvec::integers::Integers;
use rullama_train::ops::matvec::{self, Down};
use rullama_train::ops::rms_norm::Norm;
use rullama_train::reference;

use super::check::{Block, Check, Held, Outcome, Tolerance, run, scaled, values, wide};
use super::decoding::{Adapter, norm};
use super::linear::{random_weight, widths};

/// As in linear.rs.
const PRODUCT: Tolerance = Tolerance::new(2e-6, 2e-6, 2e-6);

/// One call.
struct Case {
    rows: usize,
    /// `K`.
    cols: usize,
    /// `N` of each matrix.
    matrices: Vec<(GgmlType, usize)>,
    rank: usize,
    tiled: bool,
    softcap: Option<f32>,
}

pub fn forward(gpu: &Gpu, formats: &[GgmlType]) -> Outcome {
    let mut checks = [Check::new("matvec", PRODUCT), Check::new("matvec z", PRODUCT)];
    let mut run_case = |rows, cols, matrices: &[(GgmlType, usize)], rank, tiled, softcap| {
        let case = Case { rows, cols, matrices: matrices.to_vec(), rank, tiled, softcap };
        forward_case(gpu, &mut checks, &case)
    };
    for (i, ty) in formats.iter().copied().enumerate() {
        let k = widths(ty);
        run_case(1, k[2], &[(ty, 131)], 4, false, None)?;
        // Every number of rows with some format, with and without tiles and softcap.
        run_case(
            [2, 3, 5, 8][i % 4],
            k[i % 3],
            &[(ty, 67)],
            4 * (i % 3),
            i % 2 == 0,
            [None, Some(3.0)][i % 2],
        )?;
        // Side by side, of the same and of different formats, in one dispatch and in several.
        match i % 2 {
            0 => run_case(1, 512, &[(ty, 5), (GgmlType::Q6_K, 64), (ty, 33)], 12, false, None)?,
            _ => run_case(1, 512, &[(ty, 128), (GgmlType::F16, 130)], 4, true, None)?,
        }
    }
    run_case(1, 256, &[(GgmlType::Q4_K, 1)], 0, false, None)?;
    // Wide enough for every number of threads per row.
    for k in [128, 512, 1024, 1536, 2048] {
        run_case(3, k, &[(GgmlType::F16, 5)], 4, false, None)?;
    }
    // More workgroups than one dimension holds: 32 768, of 32 rows each.
    run_case(1, 32, &[(GgmlType::Q8_0, 1_050_000)], 4, false, None)?;
    checks.into_iter().try_for_each(Check::done)
}

/// Rows that 32 and 64 threads share, with and without remaining slices, and `A` wider than four rounds of a workgroup.
pub fn wide_rows(gpu: &Gpu, formats: &[GgmlType]) -> Outcome {
    let mut checks = [Check::new("matvec", PRODUCT), Check::new("matvec z", PRODUCT)];
    for ty in formats.iter().copied() {
        for (rows, k) in [(1, 768), (3, 1536), (1, 4096)] {
            let matrices = vec![(ty, 5), (GgmlType::Q4_K, 2)];
            let case = Case { rows, cols: k, matrices, rank: 4, tiled: false, softcap: None };
            forward_case(gpu, &mut checks, &case)?;
        }
    }
    let case = Case {
        rows: 2,
        cols: 9216,
        matrices: vec![(GgmlType::Q6_K, 3)],
        rank: 8,
        tiled: false,
        softcap: None,
    };
    forward_case(gpu, &mut checks, &case)?;
    checks.into_iter().try_for_each(Check::done)
}

/// Tolerance of products in bytes: integers round x by at most half of 1/32639 of the largest of 16 values.
const BYTES: Tolerance = Tolerance::new(5e-5, 2e-4, 2e-4);

/// Products of one row in bytes, which the end of a block or a gate left, alone and side by side, and with an adapter's `A`.
pub fn in_bytes(gpu: &Gpu) -> Outcome {
    let mut checks = [Check::new("matvec", BYTES), Check::new("matvec z", PRODUCT)];
    let formats = GgmlType::SUPPORTED.into_iter().filter(|ty| ty.byte_reader().is_some());
    let formats: Vec<GgmlType> = formats.collect();
    for (i, ty) in formats.iter().copied().enumerate() {
        let pair = [ty, formats[(i + 1) % formats.len()]];
        for (k, softcap) in [(256, None), (1536, Some(300.0)), (2304, None), (5376, None)] {
            let x = Block::output(gpu, (0, 0), k, 1);
            let integers = Integers::new(gpu, k)?;
            match k {
                2304 => gated_integers(gpu, &x, &integers)?,
                _ => normed_integers(gpu, &x, &integers)?,
            }
            bytes_case(gpu, &mut checks, pair, &x, &integers, softcap)?;
        }
    }
    checks.into_iter().try_for_each(Check::done)
}

/// The norm behind a block leaves `x`.
fn normed_integers(gpu: &Gpu, x: &Block, integers: &Integers) -> Outcome {
    let k = x.rows.stride;
    let stream = Block::in_out(gpu, (0, 0), k, &values(1, k));
    let zero = Block::input(gpu, (0, 0), k, &vec![0f32; k]);
    let (norm, none) = (norm(gpu, &values(2, k)), Norm::identity(k));
    let next = Some(Next { norm: &norm, integers: Some(integers) });
    run(gpu, |rec| {
        let end = End { next, ..End::of(&none) };
        block_end::forward(rec, &stream.rows, &x.rows, &Unfinished::of(&zero.rows, None), end, 1);
    })
}

/// A gated product with an adapter leaves `x`.
fn gated_integers(gpu: &Gpu, x: &Block, integers: &Integers) -> Outcome {
    let (k, rank) = (x.rows.stride, 16);
    let adapter = Adapter::new(gpu, rank, &[k], 1);
    let gate = Block::input(gpu, (0, 0), k + rank, &[&values(4, k)[..], &adapter.z].concat());
    let up = Block::input(gpu, (0, 0), k, &values(5, k));
    run(gpu, |rec| {
        let gate = Unfinished::of(&gate.rows, adapter.up(k));
        cached_gated::forward(rec, &x.rows, &gate, up.rows.all(), Activation::Silu, 1, Some(integers));
    })
}

fn bytes_case(
    gpu: &Gpu,
    [check, z_check]: &mut [Check; 2],
    [first, second]: [GgmlType; 2],
    x: &Block,
    integers: &Integers,
    softcap: Option<f32>,
) -> Outcome {
    let (k, rank) = (x.rows.stride, 4);
    let name = format!("{} and {} K={k} softcap={softcap:?}", first.name(), second.name());
    let (first, second) =
        (random_weight(gpu, first, 131, k, k == 256), random_weight(gpu, second, 67, k, false));
    let held = Held::new(gpu, k, &values(3, rank * k));
    let y = Block::output(gpu, (0, 0), 200 + rank, 1);
    run(gpu, |rec| {
        let (matrices, down) = ([&first.0, &second.0], Down { a: &held.param, z_offset: 200 });
        let (to, x, down) = (y.rows.all(), x.rows.all(), Some(&down));
        matvec::forward_integers(rec, to, x, integers, &matrices, down, softcap);
    })?;
    let x = x.read(gpu, &name)?;
    let cap = |y: f64| softcap.map_or(y, |cap| f64::from(cap) * (y / f64::from(cap)).tanh());
    let expected = reference::linear::forward(&x, &[first.1, second.1].concat(), k);
    let expected: Vec<f64> = expected.into_iter().map(cap).collect();
    let found = y.read(gpu, &name)?;
    check.close(&name, 198, &found[..198], &expected)?;
    let expected = reference::linear::forward(&x, &wide(&values(3, rank * k)), k);
    z_check.close(&name, rank, &found[200..], &expected)
}

fn forward_case(gpu: &Gpu, [check, z_check]: &mut [Check; 2], case: &Case) -> Outcome {
    let Case { rows, cols: k, rank, tiled, softcap, .. } = *case;
    let types: Vec<String> = case.matrices.iter().map(|(ty, n)| format!("{n} of {}", ty.name())).collect();
    let name = format!("T={rows} K={k} N={types:?} R={rank} tiled={tiled} softcap={softcap:?}");
    // Rows before the first belong to another pass.
    let (before, scale) = (2, 0.37);
    let x = values(1, (before + rows) * k);
    let mine = wide(&x[before * k..]);
    let (weights, truths): (Vec<Weight>, Vec<Vec<f64>>) =
        case.matrices.iter().map(|&(ty, n)| random_weight(gpu, ty, n, k, tiled)).unzip();
    let n: usize = case.matrices.iter().map(|(_, n)| n).sum();
    let mut expected = scaled(scale, &reference::linear::forward(&mine, &truths.concat(), k));
    // The capped value is rounded before, and tanh is exact only relative to 1.
    let size = softcap.map_or(0.0, |cap| expected.iter().fold(f64::from(cap), |m, y| m.max(y.abs())));
    if let Some(cap) = softcap.map(f64::from) {
        expected.iter_mut().for_each(|y| *y = cap * (*y / cap).tanh());
    }
    let x = Block::input(gpu, (4, 8), k, &x);
    // z lies some columns after y in the same buffer.
    let (gap, y_width) = (8, n.next_multiple_of(4));
    let width = y_width + gap + rank;
    let y = Block::output(gpu, (4, 4), width, rows);
    let a = values(2, rank.max(4) * k);
    let held = Held::new(gpu, k, &a);
    let down = (rank > 0).then(|| Down { a: &held.param, z_offset: 4 + y_width + gap });
    let weights: Vec<&Weight> = weights.iter().collect();
    run(gpu, |rec| {
        matvec::forward(rec, y.view(), x.view(), before, &weights, down.as_ref(), scale, softcap, rows)
    })?;
    let found = y.read(gpu, &name)?;
    let columns = |from: usize, count: usize| -> Vec<f64> {
        found.chunks(width).flat_map(|row| &row[from..from + count]).copied().collect()
    };
    check.close_to(&name, n, &columns(0, n), &expected, size)?;
    if rank > 0 {
        let expected = reference::linear::forward(&mine, &wide(&a), k);
        z_check.close(&name, rank, &columns(y_width + gap, rank), &expected)?;
    }
    let between = [columns(n, y_width - n), columns(y_width, gap)].concat();
    match between.iter().all(|&v| v == f64::from(POISON)) {
        true => Ok(()),
        false => Err(format!("{name}: something between y and z was written").into()),
    }
}
