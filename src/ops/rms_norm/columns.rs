//! RMSNorm of some columns of rows, in place; for decoding, where queries, keys and values lie side by side.

use crate::gpu::{Kernel, Recorder};
use crate::ops::View;
use crate::ops::norm::Norm;

/// Twin of `Params` in shaders/rms_norm/columns.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    width4: u32,
    stride4: u32,
    offset4: u32,
    eps: f32,
}

/// `y = norm(y)` over `rows` rows, of as many columns as the norm, which has weights, is wide.
pub fn in_place(rec: &mut Recorder, y: View, norm: &Norm, rows: usize) {
    let params =
        Params { width4: (norm.width / 4) as u32, stride4: y.stride4(), offset4: y.offset4(), eps: norm.eps };
    let bindings = [y.rows.bind(1), norm.weights(rec, 2)];
    rec.dispatch(Kernel::new("rms_norm/columns", "forward"), &params, &bindings, [rows as u32, 1, 1]);
}
