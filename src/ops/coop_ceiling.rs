//! [`super::ceiling::multiply_add`] on cooperative matrices.

use crate::gpu::{Binding, Kernel, Recorder};

/// Twin of `Params` in shaders/coop_ceiling.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rounds: u32,
}

/// Workgroups, of four subgroups each.
const GROUPS: usize = 2048;
/// Bytes that [`multiply_add`] writes.
pub const WRITTEN: u64 = (GROUPS * 8 * 128 * 16) as u64;

/// Multiplies eight pairs of 16×16 matrices a subgroup and round; `x` has 3072 bytes, `y` [`WRITTEN`]. Returns the operations.
pub fn multiply_add(rec: &mut Recorder, x: &wgpu::Buffer, y: &wgpu::Buffer, rounds: u32) -> f64 {
    let bound = |index, buffer| Binding { index, buffer, range: None };
    let kernel = Kernel::new("coop_ceiling", "multiply_add");
    rec.dispatch(kernel, &Params { rounds }, &[bound(1, x), bound(2, y)], [GROUPS as u32, 1, 1]);
    GROUPS as f64 * 4.0 * f64::from(rounds) * 8.0 * 2.0 * 16f64.powi(3)
}
