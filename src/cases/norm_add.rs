//! A norm added to the residual stream, the sum and its norm as tiles.

use super::bench::Bench;
use super::block::Block;
use super::case::{Case, Combined, Needs, Once};
use super::inputs::{plus, scaled, values, wide};
use super::rms_norm::{EPS, norm};
use super::rms_norm_tiles::{SHAPES, norms};
use super::tiles::{block_room, expect, in_blocks, packed, room, rounded, unpacked};
use super::tolerance::Tolerance;
use crate::gpu::GpuError;
use crate::ops::act::Act;
use crate::ops::norm::Norm;
use crate::ops::norm_add::coop16::{self as norm_add, Then};
use crate::ops::pack::{FACTOR_COLUMNS, Packed};
use crate::reference::rms_norm as reference;

pub const CASES: [Case; 2] = [
    Case {
        op: "norm_add",
        name: "norms and sums as tiles",
        needs: Needs::Tiles,
        variants: super::PACKED,
        shapes: &Once(of_selftest),
    },
    Case {
        op: "norm_add",
        name: "forward",
        needs: Needs::Tiles,
        variants: super::PACKED,
        shapes: &Combined { small: &[], more: combinations, check: sums },
    },
];

/// One rounding of a sum of products.
const SUM: Tolerance = Tolerance::new(2e-6, 1e-5, 1e-6);
const SCALE: f32 = 0.75;

/// Rows, width, and whether there is a norm.
type Shape = (usize, usize, bool);

fn of_selftest(b: &mut Bench) -> Result<(), GpuError> {
    norms(b, &(67, 132))?;
    sums(b, &(67, 132, true))?;
    sums(b, &(9, 388, true))
}

/// Narrow rows with and without a norm, wide ones, whose kernels are long, with one of the two.
fn combinations() -> Vec<Shape> {
    let all = SHAPES.into_iter().enumerate();
    let all = all.flat_map(|(i, (height, width))| [true, false].map(|normed| (i, (height, width, normed))));
    let chosen = all.filter(|(i, (_, width, normed))| *width <= 60 || *normed != i.is_multiple_of(2));
    chosen.map(|(_, shape)| shape).collect()
}

/// The operands of all calls of a shape.
struct Given {
    shape: Shape,
    base: Block,
    norm: Norm,
    next: Norm,
    next_weight: Vec<f64>,
}

impl Given {
    fn call(&self, b: &Bench, y: Option<&Block>, to: &Packed, then: Then, x: &Act) -> Result<(), GpuError> {
        let (base, norm, height) = (self.base.rows(), &self.norm, self.shape.0);
        b.run(|rec| {
            norm_add::forward(rec, y.map(Block::rows), (to, then), (x, 0), norm, base, SCALE, height);
        })
    }

    /// The norm of a sum.
    fn normed(&self, sum: &[f64]) -> Vec<f64> {
        reference::forward(sum, Some(&self.next_weight), self.shape.1, EPS.into())
    }

    /// The sum, the norm of it, both of the rounded sum, and the sum as tiles.
    fn check(&self, b: &mut Bench, what: &str, x: &Act, sum: &[f64]) -> Result<(), GpuError> {
        let (height, width, normed) = self.shape;
        let name = |then: &str| format!("[{height}, {width}], normed={normed}, x {what}, {then}");
        let (y, to) = (b.output(width, height)?, room(b, height, width)?);
        self.call(b, Some(&y), &to, Then::Norm(&self.next), x)?;
        b.expect(name("the sum"), &y, sum.to_vec(), SUM);
        expect(b, &name("its norm"), &to, width, self.normed(sum))?;

        let (y, to, kept) = (b.output(width, height)?, room(b, height, width)?, room(b, height, width)?);
        self.call(b, Some(&y), &to, Then::NormOfTiles(&self.next, &kept), x)?;
        expect(b, &name("the sum as tiles"), &kept, width, sum.to_vec())?;
        let of_tiles = unpacked(b, &kept, width, height)?;
        b.expect_same(name("the rounded sum"), &y, &of_tiles);
        let narrow: Vec<f32> = sum.iter().map(|x| *x as f32).collect();
        expect(b, &name("the rounded sum's norm"), &to, width, self.normed(&rounded(&narrow, width)))?;

        let to = room(b, height, width)?;
        self.call(b, None, &to, Then::Sum, x)?;
        expect(b, &name("the sum packed"), &to, width, sum.to_vec())
    }
}

fn sums(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let &(height, width, normed) = shape;
    let [mut x, base] = [1, 2].map(|seed| values(seed, height * width));
    // Blocks of other factors.
    x.iter_mut().enumerate().filter(|(i, _)| i % width >= FACTOR_COLUMNS).for_each(|(_, x)| *x *= 8.0);
    let [w, next] = [3, 4].map(|seed| values(seed, width));
    let expected = |x: &[f64]| {
        let term = match normed {
            true => reference::forward(x, Some(&wide(&w)), width, EPS.into()),
            false => x.to_vec(),
        };
        scaled(SCALE, &plus(&term, 1.0, &wide(&base)))
    };
    let (exact, of_tiles) = (expected(&wide(&x)), expected(&rounded(&x, width)));
    let given = Given {
        shape: *shape,
        base: b.input(width, &base)?,
        norm: if normed { norm(b, &w)? } else { Norm::identity(width) },
        next: norm(b, &next)?,
        next_weight: wide(&next),
    };
    let (blocks, of_blocks) = in_blocks(b, &x, width)?;
    let x = b.input(width, &x)?;
    let (first, stored) = (packed(b, x.rows(), width, height)?, block_room(b, height, width)?);
    let fresh = Act::tiled(stored.clone(), None).packed_by_reader(x.rows().clone());
    given.check(b, "in f32", &Act::from(x.rows().clone()), &exact)?;
    given.check(b, "packed", &Act::tiled(first.clone(), None), &of_tiles)?;
    given.check(b, "packed on the way", &fresh, &of_tiles)?;
    given.check(b, "in blocks", &Act::tiled(blocks, None), &expected(&of_blocks))?;
    let [stored, first] = [unpacked(b, &stored, width, height)?, unpacked(b, &first, width, height)?];
    b.expect_same(format!("[{height}, {width}]: x packed on the way"), &stored, &first);
    Ok(())
}
