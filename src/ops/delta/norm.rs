//! Backward of the norm and the gates behind the recurrence: `y = norm(x)·silu(gate)` by head.

use super::{Delta, binding, lanes};
use crate::base::config::Activation;
use crate::gpu::{Kernel, Recorder, grid};
use crate::ops::rms_norm::Norm;
use crate::ops::{Rows, gated};

/// Sizes of the shader for heads of size `size`.
pub fn sizes(size: usize) -> Vec<(&'static str, u32)> {
    let own = [("SIZE", size as u32), ("LANES", lanes(size) as u32)];
    [&own[..], &gated::sizes(Activation::Silu)].concat()
}

/// The gradients of `gate` and `x` from `dy`, `[T, Hv, K]` each. The normed values are computed again.
pub fn backward(
    rec: &mut Recorder,
    delta: &Delta,
    norm: &Norm,
    [dgate, dx]: [&Rows; 2],
    dy: &Rows,
    [gate, x]: [&Rows; 2],
) {
    let weight = norm.weight.as_ref().expect("delta nets have a norm with weights");
    let bindings = [x.bind(2), binding(3, weight), gate.bind(4), dy.bind(5), dgate.bind(6), dx.bind(7)];
    let heads = 64 / lanes(delta.head_size);
    let workgroups = grid((delta.tokens * delta.value_heads).div_ceil(heads));
    let kernel = Kernel::new("delta/norm", "backward").with_sizes(sizes(delta.head_size));
    rec.dispatch(kernel, &super::Params { eps: norm.eps, ..delta.params() }, &bindings, workgroups);
}
