//! Products of a few rows with weights of every format, and with an adapter's `A` beside them.

use rullama_train::gpu::Gpu;
use rullama_train::ops::matvec::{self, Down};
use rullama_train::reference;
use rullama_train::weights::quant::GgmlType;

use super::check::{Block, Check, Held, Outcome, Tolerance, run, scaled, values, wide};
use super::linear::{random_weight, widths};

/// As in linear.rs.
const PRODUCT: Tolerance = Tolerance { norm: 2e-6, relative: 2e-6, absolute: 2e-6 };

/// Rows, which of [`widths`] is `K`, `N`, `R`, whether the weight is in tiles, softcap.
const CASES: [(usize, usize, usize, usize, bool, Option<f32>); 7] = [
    (1, 0, 1, 0, false, None),
    (1, 2, 131, 4, false, None),
    (1, 1, 200, 12, true, None),
    (2, 2, 67, 4, true, None),
    (3, 0, 20, 8, false, None),
    (5, 1, 9, 0, false, Some(0.75)),
    (8, 2, 70, 16, true, Some(3.0)),
];

pub fn forward(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("matvec", PRODUCT);
    let mut z_check = Check::new("matvec z", PRODUCT);
    for ty in GgmlType::SUPPORTED {
        for case in CASES {
            forward_case(gpu, [&mut check, &mut z_check], ty, widths(ty)[case.1], case)?;
        }
    }
    // Wide enough for every number of threads a row.
    for k in [128, 256, 512, 1024, 2048] {
        forward_case(gpu, [&mut check, &mut z_check], GgmlType::F16, k, (3, 0, 5, 4, false, None))?;
    }
    // More workgroups than one dimension of them holds: 32 768, of 32 rows each.
    forward_case(gpu, [&mut check, &mut z_check], GgmlType::Q8_0, 32, (1, 0, 1_050_000, 4, false, None))?;
    check.done()?;
    z_check.done()
}

fn forward_case(
    gpu: &Gpu,
    [check, z_check]: [&mut Check; 2],
    ty: GgmlType,
    k: usize,
    (rows, _, n, rank, tiled, softcap): (usize, usize, usize, usize, bool, Option<f32>),
) -> Outcome {
    let name = format!("{} T={rows} K={k} N={n} R={rank} tiled={tiled} softcap={softcap:?}", ty.name());
    let (weight, w) = random_weight(gpu, ty, n, k, tiled);
    // The rows before the first are not this pass's.
    let (before, scale) = (2, 0.37);
    let x = values(1, (before + rows) * k);
    let mine = wide(&x[before * k..]);
    let mut expected = scaled(scale, &reference::linear::forward(&mine, &w, k));
    // What the cap takes off has been rounded before.
    let size = softcap.map_or(0.0, |_| expected.iter().fold(0.0, |m: f64, y| m.max(y.abs())));
    if let Some(cap) = softcap.map(f64::from) {
        expected.iter_mut().for_each(|y| *y = cap * (*y / cap).tanh());
    }
    let x = Block::input(gpu, (4, 8), k, &x);
    // z stands some columns behind y in one buffer.
    let (gap, y_width) = (8, n.next_multiple_of(4));
    let width = y_width + gap + rank;
    let y = Block::output(gpu, (4, 4), width, rows);
    let a = values(2, rank.max(4) * k);
    let held = Held::new(gpu, k, &a);
    let down = (rank > 0).then(|| Down { a: &held.param, z_offset: 4 + y_width + gap });
    run(gpu, |rec| {
        matvec::forward(rec, y.view(), x.view(), before, &weight, down.as_ref(), scale, softcap, rows)
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
    match between.iter().all(|&v| v == f64::from(super::check::UNTOUCHED)) {
        true => Ok(()),
        false => Err(format!("{name}: something between y and z was written").into()),
    }
}
