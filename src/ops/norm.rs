//! [`Norm`]: what is known of a norm besides the rows that it is applied to.

use crate::gpu::{Binding, Gpu, GpuError, Recorder};

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
    /// Whether a rotary embedding stands between the division and the weights: a norm of rotated heads, as rotations change no length.
    pub behind_rotation: bool,
    /// Whether a norm of heads takes all heads of a token together.
    pub of_rows: bool,
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
            behind_rotation: false,
            of_rows: false,
        })
    }

    /// Multiplies rows of `width` values by `factor`, as a norm with weights: its ε is so large that no row changes the divisor, and its
    /// weights undo that. No kernel needs a case for it.
    pub fn passing(gpu: &Gpu, name: &str, width: usize, factor: f32) -> Result<Norm, GpuError> {
        let root = 40f32.exp2();
        let norm = Norm::new(gpu, name, Some(&vec![root * factor; width]), width, root * root)?;
        Ok(Norm { scale: 1.0, ..norm })
    }

    /// The norm without weights.
    pub(in crate::ops) fn unweighted(&self) -> Norm {
        Norm { weight: None, ..self.clone() }
    }

    /// `y = x` for rows of `width` values, in kernels that have a case for it.
    pub fn identity(width: usize) -> Norm {
        Norm {
            weight: None,
            width,
            eps: 0.0,
            scale: 1.0,
            identity: true,
            behind_rotation: false,
            of_rows: false,
        }
    }

    /// Values of each of the `heads` heads of a token that the norm is for.
    pub(in crate::ops) fn head_size(&self, heads: usize) -> usize {
        if self.of_rows { self.width / heads } else { self.width }
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
