//! RMSNorm and its gradient as tiles, and gradients that pass one norm after another.

use super::bench::Bench;
use super::block::Block;
use super::case::{Case, Needs, Shapes};
use super::inputs::{plus, scaled, values, wide};
use super::rms_norm::{EPS, norm};
use super::tiles::{ROUNDED, expect, in_blocks, packed, room, stale, unpacked};
use crate::gpu::GpuError;
use crate::ops::act::Act;
use crate::ops::norm::Norm;
use crate::ops::rms_norm::coop16::{self as rms_norm, Gradient, Through};
use crate::reference::rms_norm as reference;

pub const CASES: [Case; 1] = [Case {
    op: "rms_norm",
    name: "forward and backward, packed",
    needs: Needs::Tiles,
    variants: super::PACKED,
    shapes: &Shapes { small: &[], more: &SHAPES, check: norms },
}];

/// Rows and widths: less than a matrix, odd, as wide as a model's.
pub const SHAPES: [(usize, usize); 5] = [(1, 4), (7, 60), (33, 1536), (130, 2112), (16, 5376)];

fn backward(dy: &[f64], x: &[f32], w: &[f32]) -> Vec<f64> {
    reference::backward(dy, &wide(x), Some(&wide(w)), w.len(), EPS.into())
}

/// Both ways, with `x` in f32 and packed; the second row is all zero.
pub fn norms(b: &mut Bench, &(height, width): &(usize, usize)) -> Result<(), GpuError> {
    let (mut x, w) = (values(1, height * width), values(2, width));
    x.iter_mut().skip(width).take(width).for_each(|x| *x = 0.0);
    let (dy, base) = (values(3, height * width), values(4, height * width));
    let y_expected = reference::forward(&wide(&x), Some(&wide(&w)), width, EPS.into());
    let dx_expected = backward(&wide(&dy), &x, &w);
    // The gradient of a row of zeros is 1/√ε times larger than the others.
    let size = |row: &[f64]| row.iter().fold(1e-30, |most: f64, x| most.max(x.abs()));
    let levels: Vec<f64> = dx_expected.chunks(width).map(|row| 1.0 / size(row)).collect();
    let ((blocks, _), (halves, _)) = (in_blocks(b, &x, width)?, in_blocks(b, &dy, width)?);
    let (norm, x, dy) = (norm(b, &w)?, b.input(width, &x)?, b.input(width, &dy)?);
    let y = room(b, height, width)?;
    b.run(|rec| rms_norm::forward(rec, &y, x.rows(), &norm, height))?;
    expect(b, &format!("y [{height}, {width}]"), &y, width, y_expected)?;
    let added = scaled(0.5, &plus(&wide(&base), 1.0, &dx_expected));
    let tiles = Act::tiled(packed(b, x.rows(), width, height)?, None);
    let rows = Gradient::Rows(dy.rows(), 0);
    for (what, x, of) in [
        ("x", Act::from(x.rows().clone()), rows),
        ("packed x", tiles, rows),
        ("x in blocks", Act::tiled(blocks, None), Gradient::Halves(&halves)),
    ] {
        let (dx, to) = (room(b, height, width)?, b.in_out(width, &base)?);
        b.run(|rec| {
            rms_norm::backward(rec, &dx, dy.rows(), &x, &norm, height);
            rms_norm::backward_add(rec, to.rows(), of, &x, &norm, height, 0.5, None);
        })?;
        let (name, rows) = (format!("dx of {what} [{height}, {width}]"), unpacked(b, &dx, width, height)?);
        b.expect_leveled(&name, &rows, &dx_expected, ROUNDED, |row| levels[row]);
        b.expect_nothing_behind(format!("{name}, behind"), &dx, width, height);
        b.expect_leveled(format!("added {name}"), &to, &added, ROUNDED, |row| levels[row]);
    }
    passed_on(b, (height, width), &dy, &norm)
}

/// A gradient that passes a norm, is added to the stream, and passes a second norm, or is packed.
fn passed_on(
    b: &mut Bench,
    (height, width): (usize, usize),
    dy: &Block,
    norm: &Norm,
) -> Result<(), GpuError> {
    let [x, base, next_x] = [5, 6, 7].map(|seed| values(seed, height * width));
    let (w, next_w) = (values(2, width), values(8, width));
    let dx = backward(&wide(&values(3, height * width)), &x, &w);
    let sum = scaled(0.5, &plus(&wide(&base), 1.0, &dx));
    let through = backward(&sum, &next_x, &next_w);
    let (x, next_x, next) =
        (b.input(width, &x)?, b.input(width, &next_x)?, super::rms_norm::norm(b, &next_w)?);
    let tiles = Act::tiled(packed(b, next_x.rows(), width, height)?, None);
    for (what, x2, norm2, expected) in [
        ("norm", Act::from(next_x.rows().clone()), &next, &through),
        ("norm of packed x", tiles, &next, &through),
        ("nothing", Act::from(next_x.rows().clone()), &Norm::identity(width), &sum),
    ] {
        let name = format!("[{height}, {width}] through {what}");
        let (dx, to) = (stale(b, height, width)?, b.in_out(width, &base)?);
        let act = Act::from(x.rows().clone());
        b.run(|rec| {
            let next = Through { dx: &dx, x: &x2, norm: norm2 };
            let of = Gradient::Rows(dy.rows(), 0);
            rms_norm::backward_add(rec, to.rows(), of, &act, norm, height, 0.5, Some(next));
        })?;
        b.expect(format!("added, {name}"), &to, sum.clone(), ROUNDED);
        expect(b, &name, &dx, width, expected.clone())?;
    }
    Ok(())
}
