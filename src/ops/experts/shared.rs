//! The gate of a shared expert, `y = routed + σ(score)·shared`, with one score per token.

use crate::gpu::{Binding, Kernel, Recorder, grid};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::pass::Pass;

/// Twin of `Params` in shaders/experts/shared.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    width4: u32,
    stride4: u32,
    score_stride4: u32,
}

/// `y` `[T, D]` from the outputs of the `routed` experts `[T, D]` and of the `shared` one `[T, D]`, whose rows may be longer, and
/// its `scores` `[T, 1]`.
pub fn forward(p: &mut Pass, y: &Act, routed: &Act, shared: &Act, scores: &Act) {
    let shared = shared.f32(p.rec.now(), p.tokens);
    let (y, routed) = (y.rows(), routed.rows());
    let bindings = [shared.bind(2), routed.bind(3), y.bind(4)];
    by_value(p.rec.now(), "forward", y, &shared, scores, &bindings, p.tokens);
}

/// The gradient of the scores from that of `y`.
pub fn backward_scores(p: &mut Pass, dscores: &Act, dy: &Act, shared: &Act, scores: &Act) {
    let shared = shared.f32(p.rec.now(), p.tokens);
    let (dy, scores) = (dy.rows(), scores.rows());
    let params = params(dy, &shared, scores, p.tokens);
    let bindings = [scores.bind(1), shared.bind(2), dy.bind(3), dscores.rows().bind(5)];
    p.rec.now().dispatch(
        Kernel::new("experts/shared", "backward_scores"),
        &params,
        &bindings,
        grid(p.tokens),
    );
}

/// The gradient of the shared expert's output from that of `y`. That of the routed experts' output is `dy` itself.
pub fn backward(p: &mut Pass, dshared: &Act, dy: &Act, scores: &Act) {
    let (to, dy) = (dshared.staging(), dy.rows());
    by_value(p.rec.now(), "backward", &to, &to, scores, &[dy.bind(3), to.bind(4)], p.tokens);
    dshared.store(p.rec.now(), p.tokens);
}

/// Runs a kernel with a thread for every four values of `y`.
fn by_value(
    rec: &mut Recorder,
    entry: &'static str,
    y: &Rows,
    shared: &Rows,
    scores: &Act,
    bindings: &[Binding],
    tokens: usize,
) {
    let scores = scores.rows();
    let params = params(y, shared, scores, tokens);
    let bindings = [&[scores.bind(1)], bindings].concat();
    let threads = tokens * y.stride / 4;
    rec.dispatch(Kernel::new("experts/shared", entry), &params, &bindings, grid(threads.div_ceil(64)));
}

fn params(y: &Rows, shared: &Rows, scores: &Rows, tokens: usize) -> Params {
    Params {
        rows: tokens as u32,
        width4: (y.stride / 4) as u32,
        stride4: (shared.stride / 4) as u32,
        score_stride4: (scores.stride / 4) as u32,
    }
}
