//! A gradient with that of a norm added to it, which may be computed in one kernel with the gradient of the next norm.

use super::{coop16, plain};
use crate::gpu::Recorder;
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::norm::Norm;
use crate::ops::pack::Packed;
use crate::ops::partial_sums;
use coop16::{Gradient, Through};

/// `dx = scale·(dx + (∂norm/∂x)ᵀ·dy)`.
pub(in crate::ops) struct GradientSum {
    /// Gradient of the norm's output, and scratch.
    pub dy: Rows,
    /// Partial sums of `dy` in the device's scratch; 0 if it is whole.
    pub parts: u32,
    /// `dy` in f16 blocks, where a product left these.
    pub halves: Option<Packed>,
    /// The norm's input.
    pub x: Act,
    /// The norm.
    pub norm: Norm,
    /// Factor of the sum.
    pub scale: f32,
}

impl GradientSum {
    /// Whether [`GradientSum::finish_through`] computes it, where results are stored as tiles.
    pub fn goes_through_norms(&self) -> bool {
        self.norm.weight.is_some()
    }

    /// Computes it in `rows` rows of `dx`.
    pub fn finish(&self, rec: &mut Recorder, dx: &Rows, rows: usize) {
        if rec.gpu().kernels().reads_tiles() && self.goes_through_norms() {
            return self.in_one_kernel(rec, dx, None, rows);
        }
        if self.parts > 0 {
            partial_sums::add_up(rec, &self.dy, rows, self.parts);
        }
        let x = self.x.f32(rec, rows);
        plain::backward(rec, dx, &self.dy, &x, &self.norm, rows, Some(self.scale));
    }

    /// Computes it, and from that the gradient of the input of the next norm.
    pub fn finish_through(&self, rec: &mut Recorder, dx: &Rows, next: Through, rows: usize) {
        self.in_one_kernel(rec, dx, Some(next), rows);
    }

    fn in_one_kernel(&self, rec: &mut Recorder, dx: &Rows, next: Option<Through>, rows: usize) {
        let dy = match &self.halves {
            Some(halves) => Gradient::Halves(halves),
            None => Gradient::Rows(&self.dy, self.parts),
        };
        coop16::backward_add(rec, dx, dy, &self.x, &self.norm, rows, self.scale, next);
    }
}
