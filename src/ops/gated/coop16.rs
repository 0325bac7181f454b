//! [`crate::ops::gated`] into operands of products on cooperative matrices.

use crate::base::config::Activation;
use crate::gpu::{Binding, Kernel, Recorder, grid};
use crate::ops::Rows;
use crate::ops::act::Act;
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
    x_tiles: u32,
    stored: u32,
}

/// `y = activation(gate)·up` over `rows` rows. Gate and up are stored alike.
pub fn forward(rec: &mut Recorder, y: &Packed, gate: &Act, up: &Act, activation: Activation, rows: usize) {
    let mut bindings = gate.bind_source(1, 8, 10);
    bindings.extend(up.bind_source(2, 9, 11));
    bindings.extend([y.bind(4), y.bind_factors(5)]);
    let kernel = Kernel::new("gated/coop16", "forward").with_sizes(gate.source_sizes());
    let tiles = [y.tiles(), gate.tile_stride()];
    debug_assert_eq!(gate.tile_stride(), up.tile_stride(), "gate and up are stored alike");
    dispatch(rec, kernel, tiles, gate.staging().stride, (activation, rows, gate.is_stored()), &bindings);
}

/// Replaces `gate` and `up` by their gradients.
pub fn backward(
    rec: &mut Recorder,
    [gate, up]: [&Packed; 2],
    dy: &Rows,
    activation: Activation,
    rows: usize,
) {
    debug_assert_eq!(gate.tiles(), up.tiles(), "gate and up are stored alike");
    let bindings = [dy.bind(3), gate.bind(4), gate.bind_factors(5), up.bind(6), up.bind_factors(7)];
    let kernel = Kernel::new("gated/coop16", "backward").with_sizes([("MATRICES", 0), ("ROUNDED", 0)]);
    dispatch(rec, kernel, [gate.tiles(), 0], dy.stride, (activation, rows, false), &bindings);
}

fn dispatch(
    rec: &mut Recorder,
    kernel: Kernel,
    [tiles, x_tiles]: [u32; 2],
    cols: usize,
    (activation, rows, stored): (Activation, usize, bool),
    bindings: &[Binding],
) {
    let params = Params {
        rows: rows as u32,
        tiles,
        cols4: (cols / 4) as u32,
        packed4: (cols.next_multiple_of(64) / 4) as u32,
        x_tiles,
        stored: u32::from(stored),
    };
    let threads = rec.gpu().threads_of_row(THREADS);
    let each = (cols.next_multiple_of(64) / 4).div_ceil(threads) as u32;
    let kernel =
        kernel.with_size("EACH", each).with_size("THREADS", threads as u32).with_sizes(sizes(activation));
    rec.dispatch(kernel, &params, bindings, grid(rows.next_multiple_of(16)));
}
