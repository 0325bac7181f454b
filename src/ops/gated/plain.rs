//! `activation(gate)·up`, of the feed-forward block and of the per-layer embeddings.

use crate::base::config::Activation;
use crate::gpu::{Kernel, Recorder, grid};
use crate::ops::Rows;
use crate::ops::gated::sizes;
use crate::ops::partial_sums;

/// Twin of `Params` in shaders/gated/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    count: u32,
    write_dup: u32,
    parts: u32,
}

/// `y = activation(gate)·up` over `rows` rows.
pub fn forward(rec: &mut Recorder, y: &Rows, gate: &Rows, up: &Rows, activation: Activation, rows: usize) {
    let count = rows * y.stride;
    let params = Params { count: count as u32, write_dup: 0, parts: 0 };
    let bindings = [gate.bind(1), up.bind(2), y.bind(3)];
    let kernel = Kernel::new("gated/plain", "forward").with_sizes(sizes(activation));
    rec.dispatch(kernel, &params, &bindings, grid(count.div_ceil(64)));
}

/// `dgate`, and `dup` where something is trained through it. With `parts`, `dy` is the sum of so many parts in the device's scratch: see
/// [`crate::ops::partial_sums::Unsummed`].
pub fn backward(
    rec: &mut Recorder,
    dgate: &Rows,
    dup: Option<&Rows>,
    (dy, parts): (&Rows, u32),
    gate: &Rows,
    up: &Rows,
    activation: Activation,
    rows: usize,
) {
    let count = rows * dy.stride;
    let write_dup = u32::from(dup.is_some());
    let params = Params { count: count as u32, write_dup, parts: parts.max(1) };
    let dy = partial_sums::operand(rec, dy, parts, 4);
    let dup = dup.map_or(rec.unused(6), |d| d.bind(6));
    let bindings = [gate.bind(1), up.bind(2), dy, dgate.bind(5), dup];
    let kernel = Kernel::new("gated/plain", "backward").with_sizes(sizes(activation));
    rec.dispatch(kernel, &params, &bindings, grid(count.div_ceil(64)));
}
