//! `gelu(gate)·up`, of the feed-forward block and of the per-layer embeddings.

use crate::gpu::{Kernel, Recorder, grid};
use crate::ops::Rows;

/// Twin of `Params` in shaders/gated/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    count: u32,
    write_dup: u32,
}

/// `y = gelu(gate)·up` over `rows` rows.
pub fn forward(rec: &mut Recorder, y: &Rows, gate: &Rows, up: &Rows, rows: usize) {
    let count = rows * y.stride;
    let params = Params { count: count as u32, write_dup: 0 };
    let bindings = [gate.bind(1), up.bind(2), y.bind(3)];
    rec.dispatch(Kernel::new("gated/plain", "forward"), &params, &bindings, grid(count.div_ceil(64)));
}

/// `dgate`, and `dup` where something is trained through it.
pub fn backward(
    rec: &mut Recorder,
    dgate: &Rows,
    dup: Option<&Rows>,
    dy: &Rows,
    gate: &Rows,
    up: &Rows,
    rows: usize,
) {
    let count = rows * dy.stride;
    let params = Params { count: count as u32, write_dup: u32::from(dup.is_some()) };
    let dup = dup.map_or(rec.unused(6), |d| d.bind(6));
    let bindings = [gate.bind(1), up.bind(2), dy.bind(4), dgate.bind(5), dup];
    rec.dispatch(Kernel::new("gated/plain", "backward"), &params, &bindings, grid(count.div_ceil(64)));
}
