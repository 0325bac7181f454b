//! The term of a frozen adapter, added to products in place; for decoding.

use crate::gpu::{Kernel, Recorder, grid};
use crate::ops::{Up, View};

/// Twin of `Params` in shaders/lora/cached.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    width: u32,
    stride: u32,
    column: u32,
    z_offset: u32,
    b_offset: u32,
    rank: u32,
}

/// `y = y + B·z` over `rows` rows of `width` values with `B` of member `member`; a row of `y` has `z` from column `z_offset` on.
pub fn forward(
    rec: &mut Recorder,
    y: View,
    up: &Up,
    member: usize,
    z_offset: usize,
    width: usize,
    rows: usize,
) {
    let params = Params {
        rows: rows as u32,
        width: width as u32,
        stride: y.rows.stride as u32,
        column: y.offset as u32,
        z_offset: z_offset as u32,
        b_offset: up.offsets[member] as u32,
        rank: up.rank as u32,
    };
    let bindings = [y.rows.bind(1), up.bind(2)];
    rec.dispatch(
        Kernel::new("lora/cached", "forward"),
        &params,
        &bindings,
        grid((rows * width).div_ceil(64)),
    );
}
