//! The end of a block and the norm before the next: for decoding.

use super::rms_norm::Norm;
use super::{Rows, Up};
use crate::gpu::{Kernel, Recorder};

/// Twin of `Params` in shaders/residual.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    width4: u32,
    y_stride4: u32,
    z_offset4: u32,
    rank4: u32,
    next: u32,
    eps: f32,
    scale: f32,
}

/// `stream = scale·(stream + norm(y + B·z))` and `normed = next(stream)` over `rows` rows of `[rows, D]`; without `next`,
/// `normed` is scratch. `y` `[rows, D]` stands at the start of a row of products, `z` in it.
pub fn forward(
    rec: &mut Recorder,
    stream: &Rows,
    normed: &Rows,
    y: &Rows,
    up: Option<&Up>,
    norm: &Norm,
    next: Option<&Norm>,
    scale: f32,
    rows: usize,
) {
    let params = Params {
        width4: (norm.width / 4) as u32,
        y_stride4: (y.stride / 4) as u32,
        z_offset4: up.map_or(0, |u| u.member(0).0 / 4),
        rank4: up.map_or(0, |u| (u.rank / 4) as u32),
        next: u32::from(next.is_some()),
        eps: norm.eps,
        scale,
    };
    let b = up.map_or(rec.unused(2), |u| u.bind(2));
    let bindings =
        [y.bind(1), b, norm.weights(3), next.unwrap_or(norm).weights(4), stream.bind(5), normed.bind(6)];
    rec.dispatch(Kernel::new("residual", "forward"), &params, &bindings, [rows as u32, 1, 1]);
}
