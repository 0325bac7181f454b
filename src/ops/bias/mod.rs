//! A frozen bias, added to the outputs of a matrix. Its backward is the identity.

use crate::gpu::{Binding, Kernel, Recorder, grid};
use crate::ops::View;

/// Twin of `Params` in shaders/bias/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    width4: u32,
    stride4: u32,
    offset4: u32,
}

/// `y = y + bias` over `rows` rows of `width` values, a multiple of 4; `bias` is `[width]`.
pub fn forward(rec: &mut Recorder, y: View, bias: &wgpu::Buffer, width: usize, rows: usize) {
    let params =
        Params { rows: rows as u32, width4: (width / 4) as u32, stride4: y.stride4(), offset4: y.offset4() };
    let bindings = [y.rows.bind(1), Binding { index: 2, buffer: bias, range: None }];
    let groups = grid((rows * width / 4).div_ceil(64));
    rec.dispatch(Kernel::new("bias/plain", "forward"), &params, &bindings, groups);
}
