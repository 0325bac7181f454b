//! Rows that overflow in a norm.

use rullama_train::gpu::Gpu;
use rullama_train::ops::rms_norm::Norm;
use rullama_train::ops::rms_norm::plain as rms_norm;

use super::check::{Block, Outcome, run, values};
use super::half::EPS;

/// Squares whose sum overflows f32 would give a row of zeros. It must not look valid, forward or backward.
pub fn overflow(gpu: &Gpu) -> Outcome {
    let (height, width) = (3, 60);
    let mut x = values(1, height * width);
    x[width..2 * width].iter_mut().for_each(|x| *x *= 1e19);
    let dy = values(2, height * width);
    let norm = norm(gpu, None, width);
    let (x, dy) = (Block::input(gpu, (0, 0), width, &x), Block::input(gpu, (0, 0), width, &dy));
    let y = Block::output(gpu, (0, 0), width, height);
    let dx = Block::output(gpu, (0, 0), width, height);
    run(gpu, |rec| {
        rms_norm::forward(rec, &y.rows, &x.rows, &norm, None, 1.0, height);
        rms_norm::backward(rec, &dx.rows, &dy.rows, &x.rows, &norm, height, None);
    })?;
    for (what, found) in [("y", y.read(gpu, "y")?), ("dx", dx.read(gpu, "dx")?)] {
        for (row, values) in found.chunks(width).enumerate() {
            if values.iter().all(|v| v.is_finite()) != (row != 1) {
                return Err(format!("{what}, row {row}: found {values:?}").into());
            }
        }
    }
    Ok(())
}

fn norm(gpu: &Gpu, weight: Option<&[f32]>, width: usize) -> Norm {
    Norm::new(gpu, "weight", weight, width, EPS).expect("it fits")
}
