//! RMSNorm over rows: `norm(x) = w·x / √(mean(x²) + ε)`, of whole tokens or of heads of a token.

pub mod coop16;
pub mod plain;

use crate::gpu::{Binding, Gpu, GpuError, Recorder};
use crate::ops::act::Act;
use crate::ops::pass::Pass;

/// A norm's weights `[width]` (none: all 1), its row width and ε.
#[derive(Clone, Debug)]
pub struct Norm {
    /// `[width]`.
    pub weight: Option<wgpu::Buffer>,
    /// Values that are normed together, a multiple of 4.
    pub width: usize,
    /// ε.
    pub eps: f32,
    /// The power of two that brings the largest value that the norm can give, `√width·max |weight|`, into `[2⁹, 2¹⁰)`; 1
    /// without weights, where that is at most `√width`.
    pub scale: f32,
}

impl Norm {
    /// A norm of `width` values, with `weight` `[width]` or without.
    pub fn new(
        gpu: &Gpu,
        name: &str,
        weight: Option<&[f32]>,
        width: usize,
        eps: f32,
    ) -> Result<Norm, GpuError> {
        let largest = weight.iter().copied().flatten().fold(0.0f32, |most, x| most.max(x.abs()));
        let bound = largest * (width as f32).sqrt();
        let exponent = if bound.is_normal() { 9 - bound.log2().floor() as i32 } else { 0 };
        Ok(Norm {
            weight: weight.map(|w| gpu.upload(name, w)).transpose()?,
            width,
            eps,
            scale: (exponent.clamp(-100, 100) as f32).exp2(),
        })
    }

    /// The weights, of a norm that has them, at binding `index`.
    pub(in crate::ops) fn weights(&self, index: u32) -> Binding<'_> {
        let buffer = self.weight.as_ref().expect("only the norm of the values has no weights");
        Binding { index, buffer, range: None }
    }

    pub(in crate::ops) fn bind<'a>(&'a self, rec: &Recorder<'a>) -> Binding<'a> {
        self.weight.as_ref().map_or(rec.unused(2), |buffer| Binding { index: 2, buffer, range: None })
    }
}

/// `y = norm(x)` for `x` `[T, D]`.
pub fn forward(p: &mut Pass, y: &Act, x: &Act, norm: &Norm) {
    match y.tiles() {
        Some(tiles) => coop16::forward(p.rec, tiles, x.rows(), norm, p.tokens),
        None => {
            let x = x.f32(p.rec, p.tokens);
            plain::forward(p.rec, y.rows(), &x, norm, None, 1.0, p.tokens);
        }
    }
}

/// `y = norm(x) + residual`.
pub fn forward_add(p: &mut Pass, y: &Act, x: &Act, norm: &Norm, residual: &Act) {
    plain::forward(p.rec, y.rows(), x.rows(), norm, Some(residual.rows()), 1.0, p.tokens);
}

/// `dx = (∂norm/∂x)ᵀ·dy`.
pub fn backward(p: &mut Pass, dx: &Act, dy: &Act, x: &Act, norm: &Norm) {
    match dx.tiles() {
        Some(tiles) => coop16::backward(p.rec, tiles, dy.rows(), x, norm, p.tokens),
        None => plain::backward(p.rec, dx.rows(), dy.rows(), x.rows(), norm, p.tokens, None),
    }
}

/// `dx = scale·(dx + (∂norm/∂x)ᵀ·dy)`.
pub fn backward_add(p: &mut Pass, dx: &Act, dy: &Act, x: &Act, norm: &Norm, scale: f32) {
    plain::backward(p.rec, dx.rows(), dy.rows(), x.rows(), norm, p.tokens, Some(scale));
}
