//! Gates of attention's output, `y = x·σ(gate)`, which the matrix of the queries gives behind each head's query.

use crate::gpu::{Binding, Kernel, grid};
use crate::ops::act::Act;
use crate::ops::pass::Pass;

/// Twin of `Params` in shaders/output_gate/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    count4: u32,
    size4: u32,
    width4: u32,
    stride4: u32,
}

/// `queries` `[T, H, K]` from `both`, queries and gates `[T, H, 2, K]`.
pub fn split(p: &mut Pass, queries: &Act, both: &Act, heads: usize) {
    let (queries, both) = (queries.rows(), both.rows());
    run(p, "split", &[both.bind(1), queries.bind(3)], heads, [queries.stride, both.stride]);
}

/// `y` `[T, H, K]` from `x` `[T, H, K]` and the gates in `both`, whose rows may be longer.
pub fn forward(p: &mut Pass, y: &Act, x: &Act, both: &Act, heads: usize) {
    let (staging, x, both) = (y.staging(), x.f32(p.rec.now(), p.tokens), both.rows());
    let bindings = [both.bind(1), x.bind(2), staging.bind(3)];
    run(p, "forward", &bindings, heads, [x.stride, both.stride]);
    y.store(p.rec.now(), p.tokens);
}

/// The gradients of `x`, and of the gates in `dboth`, from `dy`.
pub fn backward(p: &mut Pass, [dx, dboth]: [&Act; 2], dy: &Act, x: &Act, both: &Act, heads: usize) {
    let (dx, dboth, dy, both) = (dx.rows(), dboth.rows(), dy.rows(), both.rows());
    let x = x.f32(p.rec.now(), p.tokens);
    let bindings = [both.bind(1), x.bind(2), dy.bind(4), dx.bind(5), dboth.bind(6)];
    run(p, "backward", &bindings, heads, [dy.stride, both.stride]);
}

/// Puts the gradients of the queries, `dqueries` `[T, H, K]`, beside those of the gates in `dboth`.
pub fn join(p: &mut Pass, dboth: &Act, dqueries: &Act, heads: usize) {
    let (dboth, dqueries) = (dboth.rows(), dqueries.rows());
    run(p, "join", &[dqueries.bind(2), dboth.bind(6)], heads, [dqueries.stride, dboth.stride]);
}

fn run(p: &mut Pass, entry: &'static str, bindings: &[Binding], heads: usize, [width, stride]: [usize; 2]) {
    let count4 = p.tokens * width / 4;
    let params = Params {
        count4: count4 as u32,
        size4: (width / heads / 4) as u32,
        width4: (width / 4) as u32,
        stride4: (stride / 4) as u32,
    };
    let kernel = Kernel::new("output_gate/plain", entry);
    p.rec.now().dispatch(kernel, &params, bindings, grid(count4.div_ceil(64)));
}
