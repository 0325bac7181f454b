//! From rows that are grouped by expert back to tokens.

use crate::gpu::{Kernel, Recorder, grid};
use crate::ops::Rows;
use crate::ops::View;
use crate::ops::experts::groups::Groups;

/// Twin of `Params` in shaders/experts/combine.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    used: u32,
    width4: u32,
    x_stride4: u32,
    y_stride4: u32,
    y_offset4: u32,
    weighted: u32,
}

/// `y[t] = Σ_k weight·scale·x[row of choice k]`: the experts' output from what each of them made, `scales` `[E]`. As many columns
/// of `y` as `x` has.
pub fn forward(rec: &mut Recorder, y: View, x: &Rows, scales: &Rows, groups: &Groups, tokens: usize) {
    dispatch(rec, y, x, Some(scales), groups, tokens);
}

/// `dx[t] = Σ_k dy[row of choice k]`: the gradient of what every choice of a token has read.
pub fn backward(rec: &mut Recorder, dx: View, dy: &Rows, groups: &Groups, tokens: usize) {
    dispatch(rec, dx, dy, None, groups, tokens);
}

fn dispatch(rec: &mut Recorder, y: View, x: &Rows, scales: Option<&Rows>, groups: &Groups, tokens: usize) {
    let params = Params {
        rows: tokens as u32,
        used: groups.experts.used as u32,
        width4: (x.stride / 4) as u32,
        x_stride4: (x.stride / 4) as u32,
        y_stride4: y.stride4(),
        y_offset4: y.offset4(),
        weighted: u32::from(scales.is_some()),
    };
    let scales = scales.map_or(rec.unused(6), |s| s.bind(6));
    let (places, chosen, weights) = (groups.places.bind(3), groups.chosen.bind(4), groups.weights.bind(5));
    let bindings = [x.bind(1), y.rows.bind(2), places, chosen, weights, scales];
    let workgroups = grid((tokens * x.stride / 4).div_ceil(64));
    rec.dispatch(Kernel::new("experts/combine", "forward"), &params, &bindings, workgroups);
}
