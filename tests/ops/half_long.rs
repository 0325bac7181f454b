//! Kernels that write packed operands, for more rows than one dimension of workgroups has.

use libtest_mimic::Failed;
use rullama_train::gpu::Gpu;
use rullama_train::ops::act::Act;
use rullama_train::ops::norm_add::coop16 as coop_residual;
use rullama_train::ops::norm_add::coop16::Then;
use rullama_train::ops::pack::Packed;
use rullama_train::ops::rms_norm::Norm;
use rullama_train::ops::rms_norm::coop16 as coop_norm;

use super::check::{Block, Outcome, run, values};
use super::half::{EPS, make_stale, nothing_behind, same, unpacked};

/// More than 65 535 workgroups of four rows, and rows of the last one that are not there.
const HEIGHT: usize = 262_149;
/// The last rows, alone.
const LAST: usize = 37;
const WIDTH: usize = 4;

/// The last of many rows have the bits that they have alone.
pub fn rows(gpu: &Gpu) -> Outcome {
    let (long, short) = (results(gpu, HEIGHT)?, results(gpu, LAST)?);
    for ((name, long), (_, short)) in long.into_iter().zip(short) {
        same(name, &long[(HEIGHT - LAST) * WIDTH..], &short)?;
    }
    Ok(())
}

/// The results of each kernel for the last `height` of [`HEIGHT`] rows.
fn results(gpu: &Gpu, height: usize) -> Result<Vec<(&'static str, Vec<f64>)>, Failed> {
    let [x, dy] = [1, 2].map(|seed| {
        let all = values(seed, HEIGHT * WIDTH);
        Block::input(gpu, (0, 0), WIDTH, &all[(HEIGHT - height) * WIDTH..])
    });
    let norm = Norm::new(gpu, "norm", Some(&values(3, WIDTH)), WIDTH, EPS)?;
    let room = || -> Result<Packed, Failed> {
        let packed = Packed::new(gpu, "packed", height, WIDTH)?;
        make_stale(gpu, &packed, WIDTH, height);
        Ok(packed)
    };
    let [packed, alike, normed, dx, sum] = [room()?, room()?, room()?, room()?, room()?];
    run(gpu, |rec| {
        packed.pack(rec, x.view(), WIDTH, height);
        alike.pack_alike(rec, dy.view(), WIDTH, height, &packed);
        coop_norm::forward(rec, &normed, &x.rows, &norm, height);
        coop_norm::backward(rec, &dx, &dy.rows, &x.rows.clone().into(), &norm, height);
        let x = Act::from(x.rows.clone());
        coop_residual::forward(rec, None, (&sum, Then::Norm(&norm)), (&x, 0), &norm, &dy.rows, 0.75, height);
    })?;
    let names = ["pack", "rms_norm, forward", "rms_norm, backward", "norm_add"];
    let mut all = Vec::new();
    for (name, packed) in names.into_iter().zip([packed, normed, dx, sum]) {
        all.push((name, unpacked(gpu, &packed, WIDTH, height, name)?));
    }
    nothing_behind(gpu, &alike, WIDTH, height, "pack_alike")?;
    Ok(all)
}
