//! Factors, element by element.

use crate::gpu::{Kernel, Recorder, grid};
use crate::ops::Rows;

/// Twin of `Params` in shaders/scale/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    count4: u32,
    scale: f32,
}

/// `x = scale·x` over `rows` rows.
pub fn in_place(rec: &mut Recorder, x: &Rows, scale: f32, rows: usize) {
    let count4 = rows * x.stride / 4;
    let params = Params { count4: count4 as u32, scale };
    rec.dispatch(Kernel::new("scale/plain", "in_place"), &params, &[x.bind(1)], grid(count4.div_ceil(64)));
}
