//! The gradient of [`crate::ops::heads::coop16`] into operands of products on cooperative matrices.

use crate::gpu::{Kernel, Recorder, grid};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::heads::coop16::{Turn, bind_turn, pairs4};
use crate::ops::pack::Packed;
use crate::ops::rms_norm::Norm;

/// Twin of `Params` in shaders/heads/coop16_backward.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    tiles: u32,
    x_tiles: u32,
    heads: u32,
    half4: u32,
    weighted: u32,
    pairs4: u32,
    eps: f32,
}

/// Threads per head of a token.
const THREADS: usize = 16;
/// Most threads per workgroup.
const WORKGROUP: usize = 256;

/// The shaders' sizes for `heads` heads of `size` values, a multiple of 8.
pub fn sizes(heads: usize, size: usize) -> [(&'static str, u32); 4] {
    let at_once = heads.min(WORKGROUP / THREADS);
    let tokens = WORKGROUP / (at_once * THREADS);
    [
        ("HEADS", at_once as u32),
        ("TURNS", heads.div_ceil(at_once) as u32),
        ("PAIRS", (size / 8).div_ceil(THREADS) as u32),
        ("THREADS", (tokens * at_once * THREADS) as u32),
    ]
}

/// The workgroups for `rows` rows of `heads` heads.
pub(super) fn workgroups(heads: usize, rows: usize) -> [u32; 3] {
    let tokens = WORKGROUP / (heads.min(WORKGROUP / THREADS) * THREADS);
    grid(rows.next_multiple_of(16).div_ceil(tokens))
}

/// The gradient of what the norm reads, `[rows, heads, K]` packed, from `dy` `[rows, heads, K]`, that of what
/// [`crate::ops::heads::coop16::forward`] gives, without its scale; every row of `dx` is scaled as [`Packed::pack`] does. `x` may come packed.
pub fn backward(
    rec: &mut Recorder,
    dx: &Packed,
    dy: &Rows,
    x: &Act,
    norm: &Norm,
    turn: Option<Turn>,
    heads: usize,
    rows: usize,
) {
    let params = Params {
        rows: rows as u32,
        tiles: dx.tiles(),
        x_tiles: x.tile_stride(),
        heads: heads as u32,
        half4: (norm.width / 8) as u32,
        weighted: u32::from(norm.weight.is_some()),
        pairs4: pairs4(turn),
        eps: norm.eps,
    };
    let [positions, table] = bind_turn(rec, turn);
    let mut bindings =
        vec![norm.weights(rec, 2), positions, table, dx.bind(5), dy.bind(6), dx.bind_factors(7)];
    if !norm.identity {
        bindings.extend(x.bind(1, 8));
    }
    let kernel = Kernel::new("heads/coop16_backward", "backward").with_sizes(sizes(heads, norm.width));
    let kernel = kernel.with_sizes([norm.size()]).with_sizes(x.sizes());
    rec.dispatch(kernel, &params, &bindings, workgroups(heads, rows));
}
