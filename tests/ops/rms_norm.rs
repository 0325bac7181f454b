//! Norms that pass rows on, and rows that overflow.

use rullama_train::gpu::Gpu;
use rullama_train::ops::rms_norm::Norm;
use rullama_train::ops::rms_norm::plain as rms_norm;

use super::check::{Block, Check, Outcome, Tolerance, run, values, wide};

/// A few roundings of each element, and the mean's.
const NORM: Tolerance = Tolerance::new(5e-7, 1e-6, 5e-7);
const EPS: f32 = 1e-6;

/// Rows from large to so small that ε matters; the second of several rows is zero.
fn rows(seed: u64, height: usize, width: usize) -> Vec<f32> {
    let mut x = values(seed, height * width);
    for (i, row) in x.chunks_mut(width).enumerate() {
        let size = if i == 1 { 0.0 } else { [1.0, 1e-3, 30.0, 1e-4][i % 4] };
        row.iter_mut().for_each(|x| *x *= size);
    }
    x
}

/// Rows that a norm passes on, and their gradients.
pub fn passing(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("passing norm", NORM);
    for (height, width) in &[(1, 4), (7, 20), (65, 252), (130, 68)] {
        let (height, width) = (*height, *width);
        let norm = Norm::passing(gpu, "passing", width, 1.0)?;
        let x: Vec<f32> = values(1, height * width).iter().map(|x| 1e3 * x).collect();
        let (x_block, y) = (Block::input(gpu, (0, 0), width, &x), Block::output(gpu, (0, 0), width, height));
        let dx = Block::output(gpu, (0, 0), width, height);
        run(gpu, |rec| {
            rms_norm::forward(rec, &y.rows, &x_block.rows, &norm, None, 1.0, height);
            rms_norm::backward(rec, &dx.rows, &x_block.rows, &x_block.rows, &norm, height, None);
        })?;
        for (what, block) in [("forward", &y), ("backward", &dx)] {
            let name = format!("{what} [{height}, {width}]");
            check.close(&name, width, &block.read(gpu, &name)?, &wide(&x))?;
        }
    }
    check.done()
}

/// No norm in the place of one: `y = scale·(residual + x)` and its gradient, to the bit.
pub fn identity(gpu: &Gpu) -> Outcome {
    for (height, width) in [(1, 4), (65, 256), (7, 60)] {
        let (x, r, dy) = (rows(1, height, width), values(2, height * width), values(3, height * width));
        let norm = Norm::identity(width);
        let block = |values: &[f32]| Block::input(gpu, (0, 0), width, values);
        let (x_block, r_block, dy_block) = (block(&x), block(&r), block(&dy));
        let (y, dx) = (Block::output(gpu, (0, 0), width, height), Block::in_out(gpu, (0, 0), width, &r));
        run(gpu, |rec| {
            rms_norm::forward(rec, &y.rows, &x_block.rows, &norm, Some(&r_block.rows), 0.5, height);
            rms_norm::backward(rec, &dx.rows, &dy_block.rows, &x_block.rows, &norm, height, Some(0.5));
        })?;
        let half_sum = |a: &[f32], b: &[f32]| -> Vec<f64> {
            a.iter().zip(b).map(|(a, b)| f64::from(0.5 * (a + b))).collect()
        };
        for (name, found, expected) in
            [("y", y.read(gpu, "y")?, half_sum(&x, &r)), ("dx", dx.read(gpu, "dx")?, half_sum(&dy, &r))]
        {
            if found != expected {
                return Err(format!("[{height}, {width}] {name}: found {found:?}").into());
            }
        }
    }
    Ok(())
}

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
