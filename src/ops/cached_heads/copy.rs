//! Copies of what sequences keep, within one buffer.

use crate::gpu::{Binding, Kernel, Recorder, grid};

/// Twin of `Params` in shaders/cached_heads/copy.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    first: u32,
    onto: u32,
    count: u32,
}

/// Copies `bytes` bytes of `buffer` from one byte to another, all multiples of 16. The parts do not overlap.
pub fn forward(rec: &mut Recorder, buffer: &wgpu::Buffer, [from, to]: [u64; 2], bytes: u64) {
    let [first, onto, count] = [from, to, bytes].map(|bytes| (bytes / 16) as u32);
    let params = Params { first, onto, count };
    let kernel = Kernel::new("cached_heads/copy", "forward");
    let bindings = [Binding { index: 1, buffer, range: None }];
    rec.dispatch(kernel, &params, &bindings, grid((count as usize).div_ceil(64)));
}
