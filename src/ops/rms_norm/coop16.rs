//! [`crate::ops::rms_norm`] and its gradient into operands of products on cooperative matrices.

use crate::gpu::{Binding, Kernel, Recorder};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::pack::Packed;
use crate::ops::rms_norm::Norm;

/// Rows per workgroup, and threads per row.
pub(in crate::ops) const ROWS: usize = 4;
pub(in crate::ops) const THREADS: usize = 64;

/// Twin of `Params` in shaders/rms_norm/coop16.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    tiles: u32,
    x_tiles: u32,
    width4: u32,
    packed4: u32,
    eps: f32,
}

/// `y = norm(x)` over `rows` rows, for a norm with weights; every row of `y` is scaled as [`Packed::pack`] does.
pub fn forward(rec: &mut Recorder, y: &Packed, x: &Rows, norm: &Norm, rows: usize) {
    dispatch(rec, "forward", y, &x.clone().into(), norm, rows, None);
}

/// The gradient of `x`, which may come packed, from `dy`, likewise.
pub fn backward(rec: &mut Recorder, dx: &Packed, dy: &Rows, x: &Act, norm: &Norm, rows: usize) {
    dispatch(rec, "backward", dx, x, norm, rows, Some(dy.bind(5)));
}

fn dispatch(
    rec: &mut Recorder,
    entry: &'static str,
    packed: &Packed,
    x: &Act,
    norm: &Norm,
    rows: usize,
    dy: Option<Binding>,
) {
    let params = Params {
        rows: rows as u32,
        tiles: packed.tiles(),
        x_tiles: x.tile_stride(),
        width4: (norm.width / 4) as u32,
        packed4: (norm.width.next_multiple_of(64) / 4) as u32,
        eps: norm.eps,
    };
    let each = (params.packed4 as usize).div_ceil(THREADS) as u32;
    let kernel = Kernel::new("rms_norm/coop16", entry).with_size("EACH", each).with_sizes(x.sizes());
    let mut bindings = x.bind(1, 8);
    bindings.extend([norm.weights(rec, 2), packed.bind(3), packed.bind_factors(4)]);
    bindings.extend(dy);
    let groups = rows.next_multiple_of(16).div_ceil(ROWS) as u32;
    rec.dispatch(kernel, &params, &bindings, [groups, 1, 1]);
}
