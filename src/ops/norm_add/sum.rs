//! The sum of a stream and of a norm, which may be computed in one kernel with the next norm.

use super::coop16::{self, Then};
use crate::gpu::Recorder;
use crate::ops::act::Act;
use crate::ops::norm::Norm;
use crate::ops::pack::Packed;
use crate::ops::partial_sums;
use crate::ops::rms_norm::plain;

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
}

impl Sum {
    /// Computes it in `rows` rows of `sum`.
    pub fn finish(&self, rec: &mut Recorder, sum: &Act, rows: usize) {
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
