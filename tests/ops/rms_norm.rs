//! RMSNorm with all of its options.

use rullama_train::gpu::Gpu;
use rullama_train::ops::rms_norm::Norm;
use rullama_train::ops::rms_norm::plain as rms_norm;
use rullama_train::reference;

use super::check::{Block, Check, Outcome, Tolerance, run, scaled, sum, values, wide};

/// A few roundings of each element, and the mean's: ε·√width at worst.
const NORM: Tolerance = Tolerance { norm: 5e-7, relative: 1e-6, absolute: 5e-7 };
/// The two terms of the gradient cancel in part.
const GRADIENT: Tolerance = Tolerance { norm: 1e-6, relative: 1e-6, absolute: 1e-6 };
const EPS: f32 = 1e-6;

/// Rows and widths: heads and tokens, odd, and more rows than one dimension of workgroups may have.
const SHAPES: [(usize, usize); 6] = [(1, 4), (7, 60), (65, 256), (7, 1536), (130, 60), (70_001, 4)];

/// Rows from large to so small that ε matters; the second of several rows is zero.
fn rows(seed: u64, height: usize, width: usize) -> Vec<f32> {
    let mut x = values(seed, height * width);
    for (i, row) in x.chunks_mut(width).enumerate() {
        let size = if i == 1 { 0.0 } else { [1.0, 1e-3, 30.0, 1e-4][i % 4] };
        row.iter_mut().for_each(|x| *x *= size);
    }
    x
}

/// `y = scale·(residual + norm(x))`.
pub fn forward(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("rms_norm forward", NORM);
    for (height, width) in SHAPES {
        for (weighted, with_residual, scale) in [
            (true, false, 1.0),
            (false, false, 1.0),
            (true, true, 1.0),
            (true, true, 0.3),
            (false, true, -2.0),
        ] {
            let name =
                format!("[{height}, {width}] weighted={weighted} residual={with_residual} scale={scale}");
            let (x, w, r) = (rows(1, height, width), values(2, width), values(3, height * width));
            let weight = weighted.then_some(&w[..]);
            let mut expected =
                reference::rms_norm::forward(&wide(&x), weight.map(wide).as_deref(), width, f64::from(EPS));
            if with_residual {
                expected = sum(&expected, &wide(&r));
            }
            let norm = norm(gpu, weight, width);
            let (x, r) = (Block::input(gpu, (0, 0), width, &x), Block::input(gpu, (0, 0), width, &r));
            let y = Block::output(gpu, (0, 0), width, height);
            let residual = with_residual.then_some(&r.rows);
            run(gpu, |rec| rms_norm::forward(rec, &y.rows, &x.rows, &norm, residual, scale, height))?;
            check.close(&name, width, &y.read(gpu, &name)?, &scaled(scale, &expected))?;
        }
    }
    check.done()
}

/// `dx`, written, or added and scaled. Each row is compared separately: their gradients differ by 10⁵.
pub fn backward(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("rms_norm backward", GRADIENT);
    for (height, width) in SHAPES {
        for (weighted, accumulate) in [(true, false), (true, true), (false, false), (false, true)] {
            let name = format!("[{height}, {width}] weighted={weighted} accumulate={accumulate}");
            let (x, w, dy) = (rows(1, height, width), values(2, width), values(3, height * width));
            let (weight, before) = (weighted.then_some(&w[..]), values(4, height * width));
            let (wide_x, wide_w) = (wide(&x), weight.map(wide));
            let mut expected =
                reference::rms_norm::backward(&wide(&dy), &wide_x, wide_w.as_deref(), width, f64::from(EPS));
            let norm = norm(gpu, weight, width);
            let (x, dy_block) = (Block::input(gpu, (0, 0), width, &x), Block::input(gpu, (0, 0), width, &dy));
            let dx = match accumulate {
                true => Block::in_out(gpu, (0, 0), width, &before),
                false => Block::output(gpu, (0, 0), width, height),
            };
            if accumulate {
                expected = scaled(0.75, &sum(&expected, &wide(&before)));
            }
            run(gpu, |rec| {
                rms_norm::backward(
                    rec,
                    &dx.rows,
                    &dy_block.rows,
                    &x.rows,
                    &norm,
                    height,
                    accumulate.then_some(0.75),
                )
            })?;
            let found = dx.read(gpu, &name)?;
            for row in 0..height {
                let at = row * width..(row + 1) * width;
                let (f, e) = (&found[at.clone()], &expected[at.clone()]);
                // Terms of about rstd·w·dy cancel.
                let squares: f64 = wide_x[at.clone()].iter().map(|x| x * x).sum();
                let rstd = 1.0 / (squares / width as f64 + f64::from(EPS)).sqrt();
                check.close_to(&format!("{name} row {row}"), width, f, e, 0.5 * rstd)?;
            }
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
