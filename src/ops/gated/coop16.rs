//! [`crate::ops::gated`] into operands of products on cooperative matrices.

use crate::base::config::Activation;
use crate::gpu::{Binding, Kernel, Recorder};
use crate::ops::Rows;
use crate::ops::gated::sizes;
use crate::ops::pack::Packed;

/// Most threads that share a row. The part that each keeps must leave registers for other workgroups.
const THREADS: usize = 512;

/// Twin of `Params` in shaders/gated/coop16.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    tiles: u32,
    cols4: u32,
    packed4: u32,
}

/// `y = activation(gate)·up` over `rows` rows.
pub fn forward(rec: &mut Recorder, y: &Packed, gate: &Rows, up: &Rows, activation: Activation, rows: usize) {
    let bindings = [gate.bind(1), up.bind(2), y.bind(4), y.bind_factors(5)];
    dispatch(rec, "forward", y.tiles(), gate.stride, activation, rows, &bindings);
}

/// `dgate` and `dup`, in the layout of `y`.
pub fn backward(
    rec: &mut Recorder,
    [dgate, dup]: [&Packed; 2],
    dy: &Rows,
    gate: &Rows,
    up: &Rows,
    activation: Activation,
    rows: usize,
) {
    let gradients = [dgate.bind(4), dgate.bind_factors(5), dup.bind(6), dup.bind_factors(7)];
    let bindings = [&[gate.bind(1), up.bind(2), dy.bind(3)], &gradients[..]].concat();
    dispatch(rec, "backward", dgate.tiles(), gate.stride, activation, rows, &bindings);
}

fn dispatch(
    rec: &mut Recorder,
    entry: &'static str,
    tiles: u32,
    cols: usize,
    activation: Activation,
    rows: usize,
    bindings: &[Binding],
) {
    let params = Params {
        rows: rows as u32,
        tiles,
        cols4: (cols / 4) as u32,
        packed4: (cols.next_multiple_of(64) / 4) as u32,
    };
    let threads = 1usize << rec.gpu().threads_to_share().min(THREADS).ilog2();
    let each = (cols.next_multiple_of(64) / 4).div_ceil(threads) as u32;
    let kernel = Kernel::new("gated/coop16", entry)
        .with_size("EACH", each)
        .with_size("THREADS", threads as u32)
        .with_sizes(sizes(activation));
    rec.dispatch(kernel, &params, bindings, [rows.next_multiple_of(16) as u32, 1, 1]);
}
