//! The gradient of [`crate::ops::heads::coop16`] into operands of products on cooperative matrices.

use super::Rotation;
use super::kernels::{Shared, bind_rotation, kinds, pairs4};
use crate::gpu::{Kernel, Recorder};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::norm::Norm;
use crate::ops::pack::Packed;

/// Twin of `Params` in shaders/heads/coop16_backward.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    tiles: u32,
    x_tiles: u32,
    x_blocks: u32,
    heads: u32,
    half4: u32,
    weighted_0: u32,
    pairs4_0: u32,
    eps_0: f32,
    weighted_1: u32,
    pairs4_1: u32,
    eps_1: f32,
}

/// The gradient of what the norm reads, `[rows, heads, K]` packed, from `dy` `[rows, heads, K]`, that of what
/// [`crate::ops::heads::coop16::forward`] gives, without its scale; every row of `dx` is scaled as [`Packed::pack`] does. `x` may come packed.
pub fn backward(
    rec: &mut Recorder,
    dx: &Packed,
    dy: &Rows,
    x: &Act,
    norm: &Norm,
    rotation: Option<Rotation>,
    heads: usize,
    rows: usize,
) {
    dispatch(rec, &[dx], &[dy], &[x], &[norm], rotation, heads, rows);
}

/// [`backward`] of keys and of values at once, which are stored alike; the rotary embedding is that of the keys.
pub fn backward_both(
    rec: &mut Recorder,
    dx: [&Packed; 2],
    dy: [&Rows; 2],
    x: [&Act; 2],
    norms: [&Norm; 2],
    rotation: Option<Rotation>,
    heads: usize,
    rows: usize,
) {
    let stored = |i: usize| (dx[i].tiles(), x[i].tile_stride(), x[i].sizes());
    assert!(stored(0) == stored(1), "keys and values are stored alike");
    dispatch(rec, &dx, &dy, &x, &norms, rotation, heads, rows);
}

fn dispatch(
    rec: &mut Recorder,
    dx: &[&Packed],
    dy: &[&Rows],
    x: &[&Act],
    norms: &[&Norm],
    rotation: Option<Rotation>,
    heads: usize,
    rows: usize,
) {
    let (norm, last) = (norms[0], norms[norms.len() - 1]);
    assert_eq!(norm.width * heads, dy[0].stride, "the norm is of heads");
    let params = Params {
        rows: rows as u32,
        tiles: dx[0].tiles(),
        x_tiles: x[0].tile_stride(),
        x_blocks: x[0].factors_of_row(dy[0].stride).1,
        heads: heads as u32,
        half4: (norm.width / 8) as u32,
        weighted_0: u32::from(norm.weight.is_some()),
        pairs4_0: pairs4(rotation),
        eps_0: norm.eps,
        weighted_1: u32::from(last.weight.is_some()),
        pairs4_1: 0, // values are not rotated
        eps_1: last.eps,
    };
    let mut bindings = bind_rotation(rec, rotation).to_vec();
    for (i, norm) in norms.iter().enumerate() {
        let at = 10 * i as u32;
        let [tiles, factors] = [dx[i].bind(at + 5), dx[i].bind_factors(at + 7)];
        bindings.extend([norm.weights(rec, at + 2), tiles, dy[i].bind(at + 6), factors]);
        if !norm.identity {
            bindings.extend(x[i].bind(at + 1, at + 8));
        }
    }
    let shared = match rec.gpu().kernels().cuda() {
        None => Shared::usual(heads),
        Some(_) => Shared::of_rows(heads),
    };
    let kernel = Kernel::new("heads/coop16_backward", "backward");
    let kernel = kernel.with_sizes(shared.sizes(heads, norm.width));
    let kernel = kernel.with_sizes(kinds(norms)).with_sizes(x[0].sizes());
    rec.dispatch(kernel, &params, &bindings, shared.workgroups(rows, norms.len()));
}
