//! The router of a mixture of experts: which experts are active for a token, and their weights.

use crate::gpu::{Kernel, Recorder, grid};
use crate::ops::Rows;
use crate::ops::experts::groups::Groups;

/// Twin of `Params` in shaders/experts/router.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    experts: u32,
    used: u32,
    stride: u32,
}

fn params(groups: &Groups, scores: &Rows, rows: usize) -> Params {
    Params {
        rows: rows as u32,
        experts: groups.experts.count as u32,
        used: groups.experts.used as u32,
        stride: scores.stride as u32,
    }
}

/// Chosen experts and their weights from `scores` `[rows, E]`.
pub fn forward(rec: &mut Recorder, groups: &Groups, scores: &Rows, rows: usize) {
    let bindings = [scores.bind(1), groups.chosen.bind(2), groups.weights.bind(3)];
    rec.dispatch(
        Kernel::new("experts/router", "forward"),
        &params(groups, scores, rows),
        &bindings,
        grid(rows),
    );
}

/// `dscores` `[rows, E]` from `dweights` `[rows, used]`; the choice is a constant.
pub fn backward(rec: &mut Recorder, dscores: &Rows, dweights: &Rows, groups: &Groups, rows: usize) {
    let bindings = [groups.chosen.bind(2), groups.weights.bind(3), dweights.bind(4), dscores.bind(5)];
    rec.dispatch(
        Kernel::new("experts/router", "backward"),
        &params(groups, dscores, rows),
        &bindings,
        grid(rows),
    );
}
