//! RMSNorm over rows: `norm(x) = w·x / √(mean(x²) + ε)`, of whole tokens or of heads of a token.

pub mod coop16;
pub mod plain;

use crate::gpu::{Binding, Gpu, GpuError, Recorder};
use crate::ops::act::Act;
use crate::ops::pack::Packed;
use crate::ops::partial_sums;
use crate::ops::pass::Pass;

/// A norm's weights `[width]` (none: all 1), its row width and ε; or no norm at all, in the place of one.
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
    /// Identity, `y = x`, for layers without this norm.
    pub identity: bool,
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
            identity: false,
        })
    }

    /// `y = x` for rows of `width` values.
    pub fn identity(width: usize) -> Norm {
        Norm { weight: None, width, eps: 0.0, scale: 1.0, identity: true }
    }

    /// The shaders' size that leaves the norm out.
    pub(in crate::ops) fn size(&self) -> (&'static str, u32) {
        ("IDENTITY", u32::from(self.identity))
    }

    /// The weights at binding `index`, for kernels that do not read them without a norm.
    pub(in crate::ops) fn weights_of_norm<'a>(
        &'a self,
        rec: &Recorder<'a>,
        index: u32,
    ) -> Option<Binding<'a>> {
        (!self.identity).then(|| self.weights(rec, index))
    }

    /// The weights at binding `index`.
    pub(in crate::ops) fn weights<'a>(&'a self, rec: &Recorder<'a>, index: u32) -> Binding<'a> {
        self.weight.as_ref().map_or(rec.unused(index), |buffer| Binding { index, buffer, range: None })
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

/// A norm that a gradient passes: what the norm read, and where the gradient of that goes.
#[derive(Clone, Copy)]
pub struct Through<'a, D = &'a Act> {
    /// The result.
    pub dx: D,
    /// The norm's input.
    pub x: &'a Act,
    /// The norm.
    pub norm: &'a Norm,
}

impl<'a> Through<'a> {
    /// For the kernels that pack their result; `None` where `dx` is not stored as tiles.
    fn packed(self) -> Option<Through<'a, &'a Packed>> {
        let Through { dx, x, norm } = self;
        dx.tiles().map(|dx| Through { dx, x, norm })
    }
}

/// `dx = (∂norm/∂x)ᵀ·dy`.
pub fn backward(p: &mut Pass, dx: &Act, dy: &Act, x: &Act, norm: &Norm) {
    match dx.tiles() {
        Some(tiles) if norm.identity => tiles.pack(p.rec, dy.rows().all(), norm.width, p.tokens),
        Some(tiles) => coop16::backward(p.rec, tiles, dy.rows(), x, norm, p.tokens),
        None => plain::backward(p.rec, dx.rows(), dy.rows(), x.rows(), norm, p.tokens, None),
    }
}

/// `dx = scale·(dx + (∂norm/∂x)ᵀ·dy)`. With `parts`, `dy` is the sum of so many parts in the device's scratch, and its own memory is
/// scratch. Then [`backward`] of `dx` `through` the next norm, where there is one.
pub fn backward_add(
    p: &mut Pass,
    dx: &Act,
    (dy, parts): (&Act, u32),
    x: &Act,
    norm: &Norm,
    scale: f32,
    through: Option<Through>,
) {
    let (sum, dy, tokens) = (dx.rows(), dy.rows(), p.tokens);
    if p.rec.gpu().kernels().reads_tiles() && norm.weight.is_some() {
        let packed = through.and_then(Through::packed);
        coop16::backward_add(p.rec, sum, (dy, parts), x, norm, tokens, scale, packed);
        if packed.is_some() {
            return;
        }
    } else {
        if parts > 0 {
            partial_sums::add_up(p.rec, dy, tokens, parts);
        }
        let x = x.f32(p.rec, tokens);
        plain::backward(p.rec, sum, dy, &x, norm, tokens, Some(scale));
    }
    if let Some(Through { dx: next, x, norm }) = through {
        backward(p, next, dx, x, norm);
    }
}

/// `dy += Σ parts`, of `parts` parts in the device's scratch or none, and [`backward`] of that `through` a norm.
pub fn backward_of_sum(p: &mut Pass, dy: &Act, parts: u32, through: Through) {
    let Through { dx, x, norm } = through;
    match through.packed() {
        Some(through) if parts > 0 => coop16::backward_of_sum(p.rec, dy.rows(), parts, through, p.tokens),
        _ => {
            assert!(parts == 0, "only products of tiles leave parts");
            backward(p, dx, dy, x, norm);
        }
    }
}
