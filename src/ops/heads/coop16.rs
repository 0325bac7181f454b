//! RMSNorm and rotary embedding of heads into operands of attention on cooperative matrices: [`crate::ops::attention::coop16`].

use crate::gpu::{Binding, Kernel, Recorder};
use crate::ops::act::Act;
use crate::ops::heads::coop16_backward::{sizes, workgroups};
use crate::ops::pack::Packed;
use crate::ops::rms_norm::Norm;
use crate::ops::rope::Table;

/// Twin of `Params` in shaders/heads/coop16.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    tiles: u32,
    x_tiles: u32,
    stored: u32,
    heads: u32,
    half4: u32,
    weighted: u32,
    pairs4: u32,
    eps: f32,
    scale: f32,
}

/// A rotary embedding: positions `[T]` u32, and the table of cosines and sines.
pub type Turn<'a> = (&'a wgpu::Buffer, &'a Table);

/// The rotary embedding at bindings 3 and 4.
pub(super) fn bind_turn<'g>(rec: &Recorder<'g>, turn: Option<Turn<'g>>) -> [Binding<'g>; 2] {
    match turn {
        Some((positions, table)) => [Binding { index: 3, buffer: positions, range: None }, table.bind(4)],
        None => [rec.unused(3), rec.unused(4)],
    }
}

/// A quarter of the pairs that the rotary embedding turns; 0 without one.
pub(super) fn pairs4(turn: Option<Turn>) -> u32 {
    turn.map_or(0, |(_, table)| (table.pairs() / 4) as u32)
}

/// Whether the kernels take heads of which rotary embedding turns the leading `rotated` values: whole vec4s of pairs.
pub fn supports(rotated: usize) -> bool {
    rotated.is_multiple_of(8)
}

/// `y = scale·rope(norm(x))` for `x` `[rows, heads, K]`, where [`Norm::scale`] is the power of two; without a rotary embedding
/// where `turn` is `None`. `x` may come packed, or is packed on the way.
pub fn forward(
    rec: &mut Recorder,
    y: &Packed,
    x: &Act,
    norm: &Norm,
    turn: Option<Turn>,
    heads: usize,
    rows: usize,
) {
    let params = Params {
        rows: rows as u32,
        tiles: y.tiles(),
        x_tiles: x.tile_stride(),
        stored: u32::from(x.is_stored()),
        heads: heads as u32,
        half4: (norm.width / 8) as u32,
        weighted: u32::from(norm.weight.is_some()),
        pairs4: pairs4(turn),
        eps: norm.eps,
        scale: norm.scale,
    };
    let [positions, table] = bind_turn(rec, turn);
    let mut bindings = x.bind_source(1, 8, 9);
    bindings.extend([norm.weights(rec, 2), positions, table, y.bind(5)]);
    let kernel = Kernel::new("heads/coop16", "forward").with_sizes(sizes(heads, norm.width));
    let kernel = kernel.with_sizes([norm.size()]).with_sizes(x.source_sizes());
    rec.dispatch(kernel, &params, &bindings, workgroups(heads, rows));
}
