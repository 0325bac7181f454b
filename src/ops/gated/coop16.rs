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
    blocks: u32,
    stride: u32,
    own: u32,
}

/// `y = activation(gate)·up` over `rows` rows of f32. Gate and up that are to be packed are stored alike.
pub fn forward(rec: &mut Recorder, y: &Packed, gate: &Act, up: &Act, activation: Activation, rows: usize) {
    let mut bindings = gate.bind_source(1, 8, 10);
    bindings.extend(up.bind_source(2, 9, 11));
    bindings.extend([y.bind(4), y.bind_factors(5)]);
    let [_, rounded] = gate.source_sizes();
    let kernel = Kernel::new("gated/coop16", "forward").with_sizes([rounded]);
    let stored = gate.tiles().filter(|_| gate.is_stored());
    dispatch(rec, kernel, y.tiles(), stored, gate.staging().stride, (activation, rows), &bindings);
}

/// Replaces `gate` and `up` by their gradients, whose factors [`Packed::by_row`] has.
pub fn backward(
    rec: &mut Recorder,
    [gate, up]: [&Packed; 2],
    dy: &Rows,
    activation: Activation,
    rows: usize,
) {
    debug_assert_eq!(gate.tiles(), up.tiles(), "gate and up are stored alike");
    let bindings = [dy.bind(3), gate.bind(4), gate.bind_factors(5), up.bind(6), up.bind_factors(7)];
    let kernel = Kernel::new("gated/coop16", "backward").with_sizes([("ROUNDED", 0)]);
    dispatch(rec, kernel, gate.tiles(), Some(gate), dy.stride, (activation, rows), &bindings);
}

fn dispatch(
    rec: &mut Recorder,
    kernel: Kernel,
    tiles: u32,
    stored: Option<&Packed>,
    cols: usize,
    (activation, rows): (Activation, usize),
    bindings: &[Binding],
) {
    let (blocks, stride) = stored.map_or((1, 0), |stored| stored.factors_of_row(cols));
    let params = Params {
        rows: rows as u32,
        tiles,
        cols4: (cols / 4) as u32,
        packed4: (cols.next_multiple_of(64) / 4) as u32,
        x_tiles: stored.map_or(0, Packed::tiles),
        stored: u32::from(stored.is_some()),
        blocks,
        stride,
        own: stored.map_or(0, Packed::own) as u32,
    };
    let threads = rec.gpu().threads_of_row(THREADS);
    let each = (cols.next_multiple_of(64) / 4).div_ceil(threads) as u32;
    let kernel =
        kernel.with_size("EACH", each).with_size("THREADS", threads as u32).with_sizes(sizes(activation));
    rec.dispatch(kernel, &params, bindings, grid(rows.next_multiple_of(16)));
}
