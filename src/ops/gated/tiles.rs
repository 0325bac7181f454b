//! [`crate::ops::gated`] from tiles to tiles, in one pass over the values: their factors give a bound of a row's largest result.

use crate::base::config::Activation;
use crate::gpu::{Binding, Kernel, Recorder, grid};
use crate::ops::gated::sizes;
use crate::ops::pack::Packed;

/// Rows whose factors a workgroup makes.
const FACTOR_ROWS: usize = 32;

/// Twin of `Params` in shaders/gated/tiles.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    cols4: u32,
    columns: u32,
    tiles: u32,
    y_tiles: u32,
    blocks: u32,
    stride: u32,
    dy_stride: u32,
    own: u32,
}

/// `y = activation(gate)·up` over `rows` rows of `cols` columns.
pub fn forward(
    rec: &mut Recorder,
    y: &Packed,
    gate_up: [&Packed; 2],
    cols: usize,
    activation: Activation,
    rows: usize,
) {
    dispatch(rec, ["forward_factors", "forward"], gate_up, y, cols, activation, rows);
}

/// Replaces gate and up by their gradients: the factors of both are those of gate [by row](Packed::by_row). `dy` is in blocks.
pub fn backward(
    rec: &mut Recorder,
    gate_up: [&Packed; 2],
    dy: &Packed,
    cols: usize,
    activation: Activation,
    rows: usize,
) {
    dispatch(rec, ["backward_factors", "backward"], gate_up, dy, cols, activation, rows);
}

fn dispatch(
    rec: &mut Recorder,
    [factors, values]: [&'static str; 2],
    [gate, up]: [&Packed; 2],
    y: &Packed,
    cols: usize,
    activation: Activation,
    rows: usize,
) {
    debug_assert_eq!((gate.tiles(), gate.own()), (up.tiles(), up.own()), "gate and up are stored alike");
    let (blocks, stride) = gate.factors_of_row(cols);
    let columns = cols.next_multiple_of(64) / 16;
    let params = Params {
        rows: rows as u32,
        cols4: (cols / 4) as u32,
        columns: columns as u32,
        tiles: gate.tiles(),
        y_tiles: y.tiles(),
        blocks,
        stride,
        dy_stride: y.factors_of_row(cols).1,
        own: gate.own() as u32,
    };
    let kernel = |entry| Kernel::new("gated/tiles", entry).with_sizes(sizes(activation));
    let of_factors = [gate.bind_factors(3), up.bind_factors(4), y.bind_factors(6)];
    rec.dispatch(kernel(factors), &params, &of_factors, grid(rows.div_ceil(FACTOR_ROWS)));
    let of_values: [Binding; 3] = [gate.bind(1), up.bind(2), y.bind(5)];
    let parts = columns * rows.div_ceil(16) * 32;
    rec.dispatch(kernel(values), &params, &[of_values, of_factors].concat(), grid(parts.div_ceil(256)));
}
