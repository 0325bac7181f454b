//! RMSNorm of rows of f32.

use crate::gpu::{Kernel, Recorder, grid};
use crate::ops::Rows;
use crate::ops::norm::Norm;

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

impl Norm {
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
}

/// Threads of a workgroup, whether each takes a row alone, as on SIMD registers, and workgroups for `rows` rows.
pub(in crate::ops) fn threads(rec: &Recorder, rows: usize) -> (u32, u32, usize) {
    match rec.gpu().kernels().software_lanes() {
        Some(lanes) => (lanes, 1, rows.div_ceil(lanes as usize)),
        None => (64, 0, rows),
    }
}

/// The kernel, and its workgroups for `rows` rows.
fn kernel(rec: &Recorder, entry: &'static str, norm: &Norm, rows: usize) -> (Kernel, [u32; 3]) {
    let (threads, alone, workgroups) = threads(rec, rows);
    let sizes = [("THREADS", threads), ("ALONE", alone), norm.size()];
    (Kernel::new("rms_norm/plain", entry).with_sizes(sizes), grid(workgroups))
}

/// `y = scale·(residual + norm(x))` over `rows` rows of the norm's width.
pub fn forward(
    rec: &mut Recorder,
    y: &Rows,
    x: &Rows,
    norm: &Norm,
    residual: Option<&Rows>,
    scale: f32,
    rows: usize,
) {
    let params = norm.params(rows, residual.is_some(), scale);
    let base = residual.map_or(rec.unused(3), |r| r.bind(3));
    let bindings = [x.bind(1), norm.weights(rec, 2), base, y.bind(4)];
    let (kernel, workgroups) = kernel(rec, "forward", norm, rows);
    rec.dispatch(kernel, &params, &bindings, workgroups);
}

/// `dx = (∂norm/∂x)ᵀ·dy`; with a factor in `onto`, `dx = onto·(dx + that)`.
pub fn backward(
    rec: &mut Recorder,
    dx: &Rows,
    dy: &Rows,
    x: &Rows,
    norm: &Norm,
    rows: usize,
    onto: Option<f32>,
) {
    let params = norm.params(rows, onto.is_some(), onto.unwrap_or(1.0));
    let mut bindings = vec![dy.bind(5), dx.bind(6)];
    bindings.extend(norm.weights_of_norm(rec, 2).map(|weights| [x.bind(1), weights]).into_iter().flatten());
    let (kernel, workgroups) = kernel(rec, "backward", norm, rows);
    rec.dispatch(kernel, &params, &bindings, workgroups);
}
