//! RMSNorm with all of its options.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{plus, scaled, values, wide};
use super::step::Step;
use super::tolerance::{EXACT, Tolerance};
use crate::gpu::GpuError;
use crate::ops::rms_norm::{Norm, columns, plain as rms_norm};
use crate::reference::rms_norm as reference;

/// ε of norms.
pub const EPS: f32 = 1e-6;
/// A few roundings of each element, and the mean's: ε·√width at worst.
const NORM: Tolerance = Tolerance::new(5e-7, 1e-6, 5e-7);
/// The two terms of the gradient cancel in part.
const GRADIENT: Tolerance = Tolerance::new(1e-6, 1e-6, 1e-6);

pub const CASES: [Case; 4] = [
    Case {
        op: "rms_norm",
        name: "forward and backward",
        needs: Needs::Any,
        variants: super::EXACT,
        shapes: &Shapes {
            small: &[(67, 132)],
            // Heads and tokens, odd, and more rows than one dimension of workgroups may have.
            more: &[(1, 4), (7, 60), (65, 256), (7, 1536), (130, 60), (70_001, 4)],
            check: both_ways,
        },
    },
    Case {
        op: "rms_norm",
        name: "of some columns",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes { small: &[], more: &[(1, 4), (7, 20), (65, 252), (130, 68)], check: of_columns },
    },
    Case {
        op: "rms_norm",
        name: "that passes rows on",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes { small: &[], more: &[(1, 4), (7, 20), (65, 252), (130, 68)], check: passing },
    },
    Case {
        op: "rms_norm",
        name: "no norm in the place of one",
        needs: Needs::Any,
        variants: super::EXACT,
        shapes: &Shapes { small: &[], more: &[(1, 4), (65, 256), (7, 60)], check: identity },
    },
];

/// A norm with a weight.
pub fn norm(b: &Bench, weight: &[f32]) -> Result<Norm, GpuError> {
    Norm::new(b.gpu, "case", Some(weight), weight.len(), EPS)
}

/// Rows from large to so small that ε matters; the second of several rows is zero.
fn rows(seed: u64, height: usize, width: usize) -> Vec<f32> {
    let mut x = values(seed, height * width);
    for (i, row) in x.chunks_mut(width).enumerate() {
        let size = if i == 1 { 0.0 } else { [1.0, 1e-3, 30.0, 1e-4][i % 4] };
        row.iter_mut().for_each(|x| *x *= size);
    }
    x
}

/// `y = scale·(residual + norm(x))`; `dx`, written, or added and scaled.
fn both_ways(b: &mut Bench, &(height, width): &(usize, usize)) -> Result<(), GpuError> {
    for (weighted, with_residual, scale) in
        [(true, false, 1.0), (false, false, 1.0), (true, true, 1.0), (true, true, 0.75), (false, true, -2.0)]
    {
        forward(b, [height, width], weighted, with_residual, scale)?;
    }
    for (weighted, accumulate) in [(true, false), (true, true), (false, false), (false, true)] {
        backward(b, [height, width], weighted, accumulate)?;
    }
    Ok(())
}

/// Both ways of a step's stream, with a residual.
pub fn of_step(b: &mut Bench, step: &Step) -> Result<(), GpuError> {
    let shape = [step.tokens, step.width];
    forward(b, shape, true, true, 1.0)?;
    backward(b, shape, true, false)
}

fn forward(
    b: &mut Bench,
    [height, width]: [usize; 2],
    weighted: bool,
    with_residual: bool,
    scale: f32,
) -> Result<(), GpuError> {
    let (x, w, residual) = (rows(1, height, width), values(2, width), values(3, height * width));
    let weight = weighted.then_some(&w[..]);
    let norm = Norm::new(b.gpu, "case", weight, width, EPS)?;
    let (x_block, r, y) = (b.input(width, &x)?, b.input(width, &residual)?, b.output(width, height)?);
    let added = with_residual.then(|| r.rows());
    b.run(|rec| rms_norm::forward(rec, y.rows(), x_block.rows(), &norm, added, scale, height))?;
    if b.compares() {
        let mut expected = reference::forward(&wide(&x), weight.map(wide).as_deref(), width, EPS.into());
        if with_residual {
            expected = plus(&expected, 1.0, &wide(&residual));
        }
        let name =
            format!("forward [{height}, {width}] weighted={weighted} residual={with_residual} scale={scale}");
        b.expect(name, &y, scaled(scale, &expected), NORM);
    }
    Ok(())
}

/// Each row is compared separately: their gradients differ by 10⁵.
fn backward(
    b: &mut Bench,
    [height, width]: [usize; 2],
    weighted: bool,
    accumulate: bool,
) -> Result<(), GpuError> {
    let (x, w, dy) = (rows(1, height, width), values(2, width), values(3, height * width));
    let (weight, before) = (weighted.then_some(&w[..]), values(4, height * width));
    let norm = Norm::new(b.gpu, "case", weight, width, EPS)?;
    let (x_block, dy_block) = (b.input(width, &x)?, b.input(width, &dy)?);
    let dx = if accumulate { b.in_out(width, &before)? } else { b.output(width, height)? };
    let scale = accumulate.then_some(0.75);
    b.run(|rec| {
        rms_norm::backward(rec, dx.rows(), dy_block.rows(), x_block.rows(), &norm, height, scale);
    })?;
    if b.compares() {
        let (x, w) = (wide(&x), weight.map(wide));
        let mut expected = reference::backward(&wide(&dy), &x, w.as_deref(), width, EPS.into());
        if accumulate {
            expected = scaled(0.75, &plus(&expected, 1.0, &wide(&before)));
        }
        // Terms of about rstd·w·dy cancel.
        let of_row = |row: usize| {
            let squares: f64 = x[row * width..][..width].iter().map(|x| x * x).sum();
            GRADIENT.around(0.5 / (squares / width as f64 + f64::from(EPS)).sqrt())
        };
        let name = format!("backward [{height}, {width}] weighted={weighted} accumulate={accumulate}");
        b.expect_each_row(name, &dx, expected, of_row);
    }
    Ok(())
}

/// A norm of some columns of wider rows; the columns beside them stay.
fn of_columns(b: &mut Bench, &(height, width): &(usize, usize)) -> Result<(), GpuError> {
    let (y, w, eps) = (values(1, height * width), values(2, width), 1e-3f32);
    let norm = Norm::new(b.gpu, "case", Some(&w), width, eps)?;
    let block = b.in_out_within((8, 4), width, &y)?;
    b.run(|rec| columns::in_place(rec, block.view(), &norm, height))?;
    let expected = reference::forward(&wide(&y), Some(&wide(&w)), width, eps.into());
    b.expect(format!("[{height}, {width}]"), &block, expected, NORM);
    Ok(())
}

/// Rows that a norm passes on, and their gradients.
fn passing(b: &mut Bench, &(height, width): &(usize, usize)) -> Result<(), GpuError> {
    let norm = Norm::passing(b.gpu, "case", width, 1.0)?;
    let x: Vec<f32> = values(1, height * width).iter().map(|x| 1e3 * x).collect();
    let (x_block, y, dx) = (b.input(width, &x)?, b.output(width, height)?, b.output(width, height)?);
    b.run(|rec| {
        rms_norm::forward(rec, y.rows(), x_block.rows(), &norm, None, 1.0, height);
        rms_norm::backward(rec, dx.rows(), x_block.rows(), x_block.rows(), &norm, height, None);
    })?;
    b.expect(format!("forward [{height}, {width}]"), &y, wide(&x), NORM);
    b.expect(format!("backward [{height}, {width}]"), &dx, wide(&x), NORM);
    Ok(())
}

/// No norm in the place of one: `y = 0.5·(residual + x)` and its gradient, to the bit.
fn identity(b: &mut Bench, &(height, width): &(usize, usize)) -> Result<(), GpuError> {
    let (x, r, dy) = (rows(1, height, width), values(2, height * width), values(3, height * width));
    let norm = Norm::identity(width);
    let (x_block, r_block, dy_block) = (b.input(width, &x)?, b.input(width, &r)?, b.input(width, &dy)?);
    let (y, dx) = (b.output(width, height)?, b.in_out(width, &r)?);
    b.run(|rec| {
        rms_norm::forward(rec, y.rows(), x_block.rows(), &norm, Some(r_block.rows()), 0.5, height);
        rms_norm::backward(rec, dx.rows(), dy_block.rows(), x_block.rows(), &norm, height, Some(0.5));
    })?;
    let half_sum = |a: &[f32]| a.iter().zip(&r).map(|(a, b)| f64::from(0.5 * (a + b))).collect();
    b.expect(format!("y [{height}, {width}]"), &y, half_sum(&x), EXACT);
    b.expect(format!("dx [{height}, {width}]"), &dx, half_sum(&dy), EXACT);
    Ok(())
}
