//! [`crate::ops::gated::grouped`] into operands of products on cooperative matrices.

use crate::base::config::Activation;
use crate::gpu::{Binding, Kernel, Recorder, grid};
use crate::ops::Rows;
use crate::ops::experts::groups::Groups;
use crate::ops::gated::sizes;
use crate::ops::pack::{Packed, ROWS};

/// Twin of `Params` in shaders/gated/grouped_coop16.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    row_tiles: u32,
    tile: u32,
    width4: u32,
    y_stride4: u32,
    gate_stride4: u32,
    packed4: u32,
}

/// Computes `y` `[rows, F]` from `gate_up` `[rows, 2·F]`.
pub fn forward(
    rec: &mut Recorder,
    y: &Packed,
    gate_up: &Rows,
    activation: Activation,
    groups: &Groups,
    tokens: usize,
) {
    let bindings = [gate_up.bind(1), y.bind(3), y.bind_factors(4), groups.tiles.bind(5)];
    dispatch(rec, kernel("forward", activation), 0, gate_up, groups.experts.width, groups, tokens, &bindings);
}

/// Computes `dgate_up` `[rows, 2·F]` and the gradient of every choice's weight, as [`crate::ops::gated::grouped::backward`] does.
pub fn backward(
    rec: &mut Recorder,
    (dgate_up, dweights): (&Packed, &Rows),
    [dy, gate_up, scales]: [&Rows; 3],
    activation: Activation,
    groups: &Groups,
    tokens: usize,
) {
    let bindings = [
        gate_up.bind(1),
        dy.bind(2),
        dgate_up.bind(3),
        dgate_up.bind_factors(4),
        groups.tiles.bind(5),
        groups.choices.bind(6),
        groups.weights.bind(7),
        scales.bind(8),
        dweights.bind(9),
    ];
    let width = 2 * groups.experts.width;
    dispatch(rec, kernel("backward", activation), dy.stride, gate_up, width, groups, tokens, &bindings);
}

fn kernel(entry: &'static str, activation: Activation) -> Kernel {
    Kernel::new("gated/grouped_coop16", entry).with_sizes(sizes(activation))
}

fn dispatch(
    rec: &mut Recorder,
    kernel: Kernel,
    y_stride: usize,
    gate_up: &Rows,
    width: usize,
    groups: &Groups,
    tokens: usize,
    bindings: &[Binding],
) {
    let rows = groups.most_rows(tokens);
    let params = Params {
        row_tiles: (rows / 16) as u32,
        tile: groups.tile as u32,
        width4: (groups.experts.width / 4) as u32,
        y_stride4: (y_stride / 4) as u32,
        gate_stride4: (gate_up.stride / 4) as u32,
        packed4: (width.next_multiple_of(64) / 4) as u32,
    };
    rec.dispatch(kernel, &params, bindings, grid(rows / ROWS));
}
