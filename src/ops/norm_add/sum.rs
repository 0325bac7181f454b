//! The sum of a stream and of a norm, which may be computed in one kernel with the next norm, or in decoding with the next product.

use super::coop16::{self, Then};
use crate::gpu::Recorder;
use crate::ops::act::Act;
use crate::ops::block_end::{self, End, Next};
use crate::ops::lora::Term;
use crate::ops::matvec::{self, Down, Ended};
use crate::ops::norm::Norm;
use crate::ops::pack::Packed;
use crate::ops::partial_sums;
use crate::ops::rms_norm::plain;
use crate::ops::{Rows, Unfinished, View, Weight};

/// `sum = scale·(stream + norm(x))`.
pub(in crate::ops) struct Sum {
    /// The norm's input.
    pub x: Act,
    /// Partial sums of `x` in the device's scratch; 0 if it is whole.
    pub parts: u32,
    /// The norm.
    pub norm: Norm,
    /// The stream.
    pub stream: Act,
    /// Factor of the sum.
    pub scale: f32,
    /// In decoding, the end of the block.
    pub block: Option<Block>,
}

/// Parts of the end of a block in decoding, besides those of [`Sum`]. The stream keeps its memory, unless a product ends the block: then its
/// next values are in the memory of norms, for one more block.
pub(in crate::ops) struct Block {
    /// The term that `x` lacks.
    pub term: Option<Term>,
    /// Memory of norms.
    pub normed: Rows,
}

impl Sum {
    /// Computes it in `rows` rows of `sum`.
    pub fn finish(&self, rec: &mut Recorder, sum: &Act, rows: usize) {
        if let Some(block) = &self.block {
            return self.end(rec, block, sum, None, rows);
        }
        let (norm, stream, scale) = (&self.norm, &self.stream.staging(), self.scale);
        let Some(tiles) = sum.tiles() else {
            self.add_up(rec, rows);
            self.x.store_fresh(rec, rows);
            let x = self.x.f32(rec, rows);
            return plain::forward(rec, sum.rows(), &x, norm, Some(stream), scale, rows);
        };
        let f32 = sum.has_rows().then(|| sum.rows());
        coop16::forward(rec, f32, (tiles, Then::Sum), (&self.x, self.parts), norm, stream, scale, rows);
    }

    /// Computes it, and `next = norm(sum)` for a norm with weights.
    pub fn finish_with_norm(&self, rec: &mut Recorder, sum: &Act, next: &Packed, norm: &Norm, rows: usize) {
        let then = match sum.tiles() {
            Some(tiles) => Then::NormOfTiles(norm, tiles),
            None => Then::Norm(norm),
        };
        let (y, stream, x) = (sum.staging(), self.stream.staging(), (&self.x, self.parts));
        coop16::forward(rec, Some(&y), (next, then), x, &self.norm, &stream, self.scale, rows);
    }

    /// Whether `y` takes the norm of the sum at the end of a block.
    pub fn ends_before(&self, y: &Act) -> bool {
        self.block.as_ref().is_some_and(|block| y.has_rows() && y.view().place() == block.normed.place())
    }

    /// Computes it, and `y = norm(sum)` where [`Sum::ends_before`] holds.
    pub fn finish_before(&self, rec: &mut Recorder, sum: &Act, y: &Act, norm: &Norm, rows: usize) {
        if let Some(block) = &self.block {
            self.end(rec, block, sum, Some(Next { norm, integers: y.integers() }), rows);
        }
    }

    fn end(&self, rec: &mut Recorder, block: &Block, sum: &Act, next: Option<Next>, rows: usize) {
        let y = Unfinished::of(self.x.rows(), block.term.as_ref().map(Term::up));
        let ended = !self.stream.shares_memory(sum);
        let end = End { norm: &self.norm, scale: self.scale, next, ended };
        block_end::forward(rec, sum.rows(), &block.normed, &y, end, rows);
    }

    /// Whether the product that reads the sum, which lies in the memory of norms, computes it.
    pub fn ends_in_product(&self, sum: &Act) -> bool {
        self.ends_before(sum)
    }

    /// Computes it, and `y = sum·Wᵀ` with the `z` of an adapter.
    pub fn finish_in_product(&self, rec: &mut Recorder, sum: &Act, y: View, w: &Weight, down: Option<&Down>) {
        let term = self.block.as_ref().and_then(|block| block.term.as_ref());
        let of_block = Unfinished::of(self.x.rows(), term.map(Term::up));
        let (norm, stream, after) = (&self.norm, self.stream.rows(), sum.rows());
        matvec::forward_ended(rec, y, &Ended { y: &of_block, norm, stream, after }, w, down);
    }

    /// Leaves `x` as backward reads it, where the sum is kept already.
    pub fn skip(&self, rec: &mut Recorder, rows: usize) {
        self.add_up(rec, rows);
        // The gradient of a norm reads what the norm read.
        if !self.norm.identity {
            self.x.store_fresh(rec, rows);
        }
    }

    fn add_up(&self, rec: &mut Recorder, rows: usize) {
        if self.parts > 0 {
            partial_sums::add_up(rec, &self.x.staging(), rows, self.parts);
        }
    }
}
