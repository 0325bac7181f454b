//! `activation(gate)·up` of rows that are grouped by expert, and the gradients of the weights of the choices.

use crate::base::config::Activation;
use crate::gpu::{Kernel, Recorder, grid};
use crate::ops::Rows;
use crate::ops::experts::groups::Groups;
use crate::ops::gated::sizes;

/// Twin of `Params` in shaders/gated/grouped.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    width: u32,
    y_stride: u32,
    gate_stride: u32,
    tile: u32,
    rows: u32,
}

fn params(groups: &Groups, y: &Rows, gate_up: &Rows, tokens: usize) -> Params {
    Params {
        width: groups.experts.width as u32,
        y_stride: y.stride as u32,
        gate_stride: gate_up.stride as u32,
        tile: groups.tile as u32,
        rows: groups.most_rows(tokens) as u32,
    }
}

/// Computes `y` `[rows, F]` from `gate_up` `[rows, 2·F]`.
pub fn forward(
    rec: &mut Recorder,
    y: &Rows,
    gate_up: &Rows,
    activation: Activation,
    groups: &Groups,
    tokens: usize,
) {
    let params = params(groups, y, gate_up, tokens);
    let bindings = [gate_up.bind(1), y.bind(2), groups.tiles.bind(5)];
    let workgroups = grid(groups.most_rows(tokens));
    let kernel = Kernel::new("gated/grouped", "forward").with_sizes(sizes(activation));
    rec.dispatch(kernel, &params, &bindings, workgroups);
}

/// Computes `dgate_up` `[rows, 2·F]` and the gradient of every choice's weight from `dy` `[rows, F]`, the gradient of `y` before weights and
/// `scales` `[E]` are applied.
pub fn backward(
    rec: &mut Recorder,
    [dgate_up, dweights]: [&Rows; 2],
    [dy, gate_up, scales]: [&Rows; 3],
    activation: Activation,
    groups: &Groups,
    tokens: usize,
) {
    let params = params(groups, dy, gate_up, tokens);
    let bindings = [
        gate_up.bind(1),
        dy.bind(3),
        dgate_up.bind(4),
        groups.tiles.bind(5),
        groups.choices.bind(6),
        groups.weights.bind(7),
        scales.bind(8),
        dweights.bind(9),
    ];
    let workgroups = grid(groups.most_rows(tokens));
    let kernel = Kernel::new("gated/grouped", "backward").with_sizes(sizes(activation));
    rec.dispatch(kernel, &params, &bindings, workgroups);
}
