//! [`crate::ops::peak::multiply_add`] on cooperative matrices.

use crate::gpu::{Binding, Kernel, Matrices, Recorder};

/// Twin of `Params` in shaders/peak/coop.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rounds: u32,
}

/// Workgroups of four subgroups each.
const GROUPS: usize = 2048;
/// Most bytes that [`multiply_add`] writes.
pub const WRITTEN: u64 = (GROUPS * 8 * 2 * 1024) as u64;

/// Multiplies eight pairs of `matrices` per subgroup and round. `x` has at least 3072 bytes, `y` has [`WRITTEN`]. Returns the number of
/// operations.
pub fn multiply_add(
    rec: &mut Recorder,
    x: &wgpu::Buffer,
    y: &wgpu::Buffer,
    matrices: Matrices,
    rounds: u32,
) -> f64 {
    let bound = |index, buffer| Binding { index, buffer, range: None };
    let kernel = Kernel::new("peak/coop", "multiply_add");
    let kernel = kernel.with_size("EDGE", matrices.edge).with_size("LANES", matrices.lanes);
    rec.dispatch(kernel, &Params { rounds }, &[bound(1, x), bound(2, y)], [GROUPS as u32, 1, 1]);
    GROUPS as f64 * 4.0 * f64::from(rounds) * 8.0 * 2.0 * f64::from(matrices.edge).powi(3)
}
