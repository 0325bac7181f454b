//! RMSNorm over rows: whole tokens, or heads of a token.

pub mod coop16;

use crate::gpu::{Binding, Gpu, GpuError, Kernel, Recorder, grid};
use crate::ops::Rows;

/// Twin of `Params` in shaders/rms_norm/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    width4: u32,
    weighted: u32,
    residual: u32,
    eps: f32,
    scale: f32,
}

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

    fn params(&self, rows: usize, residual: bool, scale: f32) -> Params {
        Params {
            rows: rows as u32,
            width4: (self.width / 4) as u32,
            weighted: u32::from(self.weight.is_some()),
            residual: u32::from(residual),
            eps: self.eps,
            scale,
        }
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

/// The kernel, and its workgroups for `rows` rows: one a row, or on SIMD registers one thread a row.
fn kernel(rec: &Recorder, entry: &'static str, rows: usize) -> (Kernel, [u32; 3]) {
    let (threads, alone) = rec.gpu().simd().map_or((64, 0), |lanes| (lanes, 1));
    let sizes = [("THREADS", threads), ("ALONE", alone)];
    let kernel = Kernel::new("rms_norm/plain", entry).with_sizes(sizes);
    (kernel, grid(if alone == 1 { rows.div_ceil(threads as usize) } else { rows }))
}

/// `y = scale·(residual + norm(x))` over `rows` rows of the norm's width.
pub fn forward<'a>(
    rec: &mut Recorder<'a>,
    y: &Rows,
    x: &Rows,
    norm: &'a Norm,
    residual: Option<&Rows>,
    scale: f32,
    rows: usize,
) {
    let params = norm.params(rows, residual.is_some(), scale);
    let base = residual.map_or(rec.unused(3), |r| r.bind(3));
    let bindings = [x.bind(1), norm.bind(rec), base, y.bind(4)];
    let (kernel, workgroups) = kernel(rec, "forward", rows);
    rec.dispatch(kernel, &params, &bindings, workgroups);
}

/// `dx = (∂norm/∂x)ᵀ·dy`; with a factor in `onto`, `dx = onto·(dx + that)`.
pub fn backward<'a>(
    rec: &mut Recorder<'a>,
    dx: &Rows,
    dy: &Rows,
    x: &Rows,
    norm: &'a Norm,
    rows: usize,
    onto: Option<f32>,
) {
    let params = norm.params(rows, onto.is_some(), onto.unwrap_or(1.0));
    let bindings = [x.bind(1), norm.bind(rec), dy.bind(5), dx.bind(6)];
    let (kernel, workgroups) = kernel(rec, "backward", rows);
    rec.dispatch(kernel, &params, &bindings, workgroups);
}
