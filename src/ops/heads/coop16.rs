//! RMSNorm and rotary embedding of heads into operands of attention on cooperative matrices: [`crate::ops::attention::coop16`].

use super::Rotation;
use super::kernels::{Shared, bind_rotation, kinds, pairs4};
use crate::gpu::{Kernel, Recorder};
use crate::ops::act::Act;
use crate::ops::norm::Norm;
use crate::ops::pack::Packed;

/// Twin of `Params` in shaders/heads/coop16.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    tiles: u32,
    x_tiles: u32,
    x_blocks: u32,
    x_count: u32,
    stored: u32,
    heads: u32,
    half4: u32,
    weighted_0: u32,
    pairs4_0: u32,
    eps_0: f32,
    scale_0: f32,
    weighted_1: u32,
    pairs4_1: u32,
    eps_1: f32,
    scale_1: f32,
}

/// Whether the kernels take heads of which rotary embedding turns the leading `rotated` values: whole vec4s of pairs.
pub fn supports(rotated: usize) -> bool {
    rotated.is_multiple_of(8)
}

/// The shader's sizes for the norm of queries or keys: whether it is of whole rows, and whether its weights stand behind the turn.
pub fn places(norm: &Norm) -> [(&'static str, u32); 2] {
    let weighted = norm.weight.is_some();
    [("OF_ROWS", u32::from(norm.of_rows)), ("BEHIND", u32::from(norm.behind_rotation && weighted))]
}

/// `y = scale·rope(norm(x))` for `x` `[rows, heads, K]`, where [`Norm::scale`] is the power of two; without a rotary embedding
/// where `turn` is `None`. `x` may come packed, or is packed on the way. The norm may be [of rows](Norm::of_rows), or
/// [behind](Norm::behind_rotation) the rotary embedding.
pub fn forward(
    rec: &mut Recorder,
    y: &Packed,
    x: &Act,
    norm: &Norm,
    rotation: Option<Rotation>,
    heads: usize,
    rows: usize,
) {
    dispatch(rec, &[y], &[x], &[norm], rotation, heads, rows);
}

/// [`forward`] of keys and of values at once, which are stored alike; the rotary embedding is that of the keys.
pub fn forward_both(
    rec: &mut Recorder,
    y: [&Packed; 2],
    x: [&Act; 2],
    norms: [&Norm; 2],
    rotation: Option<Rotation>,
    heads: usize,
    rows: usize,
) {
    let stored = |i: usize| (y[i].tiles(), x[i].tile_stride(), x[i].is_stored(), x[i].source_sizes());
    assert!(stored(0) == stored(1), "keys and values are stored alike");
    dispatch(rec, &y, &x, &norms, rotation, heads, rows);
}

fn dispatch(
    rec: &mut Recorder,
    y: &[&Packed],
    x: &[&Act],
    norms: &[&Norm],
    rotation: Option<Rotation>,
    heads: usize,
    rows: usize,
) {
    let (norm, last) = (norms[0], norms[norms.len() - 1]);
    let head_size = norm.head_size(heads);
    let (x_count, x_blocks) = x[0].factors_of_row(heads * head_size);
    let params = Params {
        rows: rows as u32,
        tiles: y[0].tiles(),
        x_tiles: x[0].tile_stride(),
        x_blocks,
        x_count,
        stored: u32::from(x[0].is_stored()),
        heads: heads as u32,
        half4: (head_size / 8) as u32,
        weighted_0: u32::from(norm.weight.is_some()),
        pairs4_0: pairs4(rotation),
        eps_0: norm.eps,
        scale_0: norm.scale,
        weighted_1: u32::from(last.weight.is_some()),
        pairs4_1: 0, // values are not rotated
        eps_1: last.eps,
        scale_1: last.scale,
    };
    let mut bindings = bind_rotation(rec, rotation).to_vec();
    for (i, norm) in norms.iter().enumerate() {
        let at = 10 * i as u32;
        bindings.extend(x[i].bind_source(at + 1, at + 8, at + 9));
        bindings.extend([norm.weights(rec, at + 2), y[i].bind(at + 5)]);
    }
    // Heads that are rounded on the way share one factor, as a norm of rows has one mean.
    let needs_row = norm.of_rows || x[0].source_sizes().contains(&("ROUNDED", 1));
    let shared = match rec.gpu().kernels().cuda() {
        None => Shared::usual(heads),
        Some(_) if needs_row => Shared::of_rows(heads),
        Some(_) => Shared::of_heads(heads),
    };
    let kernel = Kernel::new("heads/coop16", "forward").with_sizes(shared.sizes(heads, head_size));
    let kernel = kernel.with_sizes(places(norm));
    let kernel = kernel.with_sizes(kinds(norms)).with_sizes(x[0].source_sizes());
    rec.dispatch(kernel, &params, &bindings, shared.workgroups(rows, norms.len()));
}
