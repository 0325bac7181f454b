//! The peak rates of a device, which kernels are compared with: bytes copied, and multiply-adds in f32.

pub mod coop;

use crate::gpu::{Binding, Kernel, Recorder, grid};

/// Twin of `Params` in shaders/peak/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    count: u32,
    rounds: u32,
}

/// Workgroups that multiply: several for each multiprocessor.
pub const GROUPS: usize = 4096;
/// Bytes that [`multiply_add`] writes.
pub const WRITTEN: u64 = (GROUPS * 256 * 16) as u64;

/// Copies `bytes`, a multiple of 16, from the start of `x` to that of `y`.
pub fn copy(rec: &mut Recorder, x: &wgpu::Buffer, y: &wgpu::Buffer, bytes: u64) {
    let count = (bytes / 16) as u32;
    dispatch(rec, "copy", x, y, Params { count, rounds: 0 }, grid((count as usize).div_ceil(256)));
}

/// Runs `rounds` times 8 multiply-adds of vec4s per thread, in f32. `x` has 4096 bytes, `y` has [`WRITTEN`]. Returns the number of
/// operations: two per multiply-add.
pub fn multiply_add(rec: &mut Recorder, x: &wgpu::Buffer, y: &wgpu::Buffer, rounds: u32) -> f64 {
    dispatch(rec, "multiply_add", x, y, Params { count: 0, rounds }, [GROUPS as u32, 1, 1]);
    GROUPS as f64 * 256.0 * f64::from(rounds) * 8.0 * 4.0 * 2.0
}

fn dispatch(
    rec: &mut Recorder,
    entry: &'static str,
    x: &wgpu::Buffer,
    y: &wgpu::Buffer,
    params: Params,
    workgroups: [u32; 3],
) {
    let bound = |index, buffer| Binding { index, buffer, range: None };
    rec.dispatch(Kernel::new("peak/plain", entry), &params, &[bound(1, x), bound(2, y)], workgroups);
}
