//! The router of a mixture of experts: which experts are active for a token, and their weights.

use crate::base::config::{Experts, Gating};
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

/// Sizes of the shader for weights that are a softmax over all experts, and for sigmoids.
pub fn sizes(gating: Gating) -> [(&'static str, u32); 2] {
    [("ALL", u32::from(gating == Gating::All)), ("SIGMOID", u32::from(gating == Gating::Sigmoid))]
}

fn kernel(experts: &Experts, entry: &'static str) -> Kernel {
    Kernel::new("experts/router", entry).with_sizes(sizes(experts.gating))
}

/// Chosen experts and their weights from `scores` `[rows, E]`. `selection` `[E]` are the biases of [`Gating::Sigmoid`], which needs them.
pub fn forward(rec: &mut Recorder, groups: &Groups, scores: &Rows, selection: Option<&Rows>, rows: usize) {
    let mut bindings = vec![scores.bind(1), groups.chosen.bind(2), groups.weights.bind(3)];
    bindings.extend(selection.map(|selection| selection.bind(6)));
    let kernel = kernel(&groups.experts, "forward");
    rec.dispatch(kernel, &params(groups, scores, rows), &bindings, grid(rows));
}

/// `dscores` `[rows, E]` from `dweights` `[rows, used]`; the choice is a constant. `scores` are those of [`forward`], which
/// [`Experts::keeps_scores`] tells to be needed; else they are not read.
pub fn backward(
    rec: &mut Recorder,
    dscores: &Rows,
    dweights: &Rows,
    scores: &Rows,
    groups: &Groups,
    rows: usize,
) {
    let mut bindings = Vec::with_capacity(5);
    if groups.experts.keeps_scores() {
        bindings.push(scores.bind(1));
    }
    bindings.extend([groups.chosen.bind(2), groups.weights.bind(3), dweights.bind(4), dscores.bind(5)]);
    let kernel = kernel(&groups.experts, "backward");
    rec.dispatch(kernel, &params(groups, dscores, rows), &bindings, grid(rows));
}
