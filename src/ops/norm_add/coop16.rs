//! Adds a norm's result to the residual stream, and packs the operand of the next products, in one kernel.

use crate::gpu::{Kernel, Recorder};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::norm::Norm;
use crate::ops::pack::Packed;
use crate::ops::partial_sums;
use crate::ops::rms_norm::coop16::Workgroup;

/// Twin of `Params` in shaders/norm_add/coop16.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    tiles: u32,
    x_tiles: u32,
    x_blocks: u32,
    x_count: u32,
    y_tiles: u32,
    width4: u32,
    packed4: u32,
    stored: u32,
    x_stored: u32,
    eps: f32,
    next_eps: f32,
    parts: u32,
    scale: f32,
}

/// The value that is packed, from the sum `y`.
#[derive(Clone, Copy)]
pub enum Then<'a> {
    /// The sum itself.
    Sum,
    /// This norm of the sum.
    Norm(&'a Norm),
    /// This norm of the sum, which is rounded to these tiles first.
    NormOfTiles(&'a Norm, &'a Packed),
}

/// `y = scale·(residual + norm(x))` over `rows` rows, in f32 where `y` is given, and what `then` says of it in `packed`, every row
/// scaled as [`Packed::pack`] does. `x` may come packed, or is packed on the way; with `parts`, it is their sum: see
/// [`crate::ops::partial_sums::Unsummed`]. The norm of the sum has weights.
pub fn forward(
    rec: &mut Recorder,
    y: Option<&Rows>,
    (packed, then): (&Packed, Then),
    (x, parts): (&Act, u32),
    norm: &Norm,
    residual: &Rows,
    scale: f32,
    rows: usize,
) {
    let (next, kept) = match then {
        Then::Sum => (None, None),
        Then::Norm(next) => (Some(next), None),
        Then::NormOfTiles(next, tiles) => (Some(next), Some(tiles)),
    };
    let (x_count, x_blocks) = x.factors_of_row(norm.width);
    let params = Params {
        rows: rows as u32,
        tiles: packed.tiles(),
        x_tiles: x.tile_stride(),
        x_blocks,
        x_count,
        y_tiles: kept.map_or(0, Packed::tiles),
        width4: (norm.width / 4) as u32,
        packed4: (norm.width.next_multiple_of(64) / 4) as u32,
        stored: u32::from(y.is_some()),
        x_stored: u32::from(x.is_stored()),
        eps: norm.eps,
        next_eps: next.map_or(0.0, |next| next.eps),
        parts: parts.max(1),
        scale,
    };
    let packed4 = params.packed4 as usize;
    let workgroup = Workgroup::new(rec.gpu().kernels(), packed4);
    let (normed, rounded) = (u32::from(next.is_some()), u32::from(kept.is_some()));
    let sizes = [("NORMED", normed), ("KEPT", rounded), norm.size()];
    let kernel = Kernel::new("norm_add/coop16", "forward")
        .with_sizes(workgroup.sizes(packed4))
        .with_sizes(sizes)
        .with_sizes(x.source_sizes());
    let mut bindings = x.bind_source(1, 8, 9);
    if parts > 0 {
        bindings[0] = partial_sums::in_scratch(rec, 1);
    }
    bindings.extend(norm.weights_of_norm(rec, 2));
    bindings.extend([residual.bind(3), y.map_or(rec.unused(4), |y| y.bind(4))]);
    bindings.extend([packed.bind(5), packed.bind_factors(6)]);
    bindings.extend(next.map(|next| next.weights(rec, 7)));
    bindings.extend(kept.into_iter().flat_map(|tiles| [tiles.bind_factors(10), tiles.bind(11)]));
    rec.dispatch(kernel, &params, &bindings, workgroup.grid(rows));
}
