//! Adds a norm's result to the residual stream, and packs the operand of the next products, in one kernel.

use crate::gpu::{Kernel, Recorder};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::pack::Packed;
use crate::ops::rms_norm::Norm;
use crate::ops::rms_norm::coop16::{ROWS, THREADS};

/// Twin of `Params` in shaders/norm_add/coop16.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    tiles: u32,
    x_tiles: u32,
    width4: u32,
    packed4: u32,
    stored: u32,
    x_stored: u32,
    eps: f32,
    next_eps: f32,
    scale: f32,
}

/// The value that is packed, from the sum `y`.
#[derive(Clone, Copy)]
pub enum Then<'a> {
    /// The sum itself.
    Sum,
    /// This norm of the sum.
    Norm(&'a Norm),
}

/// `y = scale·(residual + norm(x))` over `rows` rows, in f32 where `y` is given, and what `then` says of it in `packed`, every row
/// scaled as [`Packed::pack`] does. `x` may come packed, or is packed on the way. The norm of the sum has weights.
pub fn forward(
    rec: &mut Recorder,
    y: Option<&Rows>,
    (packed, then): (&Packed, Then),
    x: &Act,
    norm: &Norm,
    residual: &Rows,
    scale: f32,
    rows: usize,
) {
    let next = match then {
        Then::Norm(next) => Some(next),
        Then::Sum => None,
    };
    let params = Params {
        rows: rows as u32,
        tiles: packed.tiles(),
        x_tiles: x.tile_stride(),
        width4: (norm.width / 4) as u32,
        packed4: (norm.width.next_multiple_of(64) / 4) as u32,
        stored: u32::from(y.is_some()),
        x_stored: u32::from(x.is_stored()),
        eps: norm.eps,
        next_eps: next.map_or(0.0, |next| next.eps),
        scale,
    };
    let each = (params.packed4 as usize).div_ceil(THREADS) as u32;
    let normed = u32::from(next.is_some());
    let sizes = [("EACH", each), ("NORMED", normed), norm.size()];
    let kernel = Kernel::new("norm_add/coop16", "forward").with_sizes(sizes).with_sizes(x.source_sizes());
    let mut bindings = x.bind_source(1, 8, 9);
    bindings.extend(norm.weights_of_norm(rec, 2));
    bindings.extend([residual.bind(3), y.map_or(rec.unused(4), |y| y.bind(4))]);
    bindings.extend([packed.bind(5), packed.bind_factors(6)]);
    bindings.extend(next.map(|next| next.weights(rec, 7)));
    let groups = rows.next_multiple_of(16).div_ceil(ROWS) as u32;
    rec.dispatch(kernel, &params, &bindings, [groups, 1, 1]);
}
