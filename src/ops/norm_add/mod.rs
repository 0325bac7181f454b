//! The end of a block: its normed output added to the stream, and the norm that the next block reads.
//!
//! Forward alone: backward takes the two norms apart, as [`crate::ops::rms_norm`] has them.

pub mod coop16;

use crate::ops::act::Act;
use crate::ops::partial_sums;
use crate::ops::pass::Pass;
use crate::ops::rms_norm::{Norm, plain};
use coop16::Then;

/// `sum = scale·(stream + norm(x))`. Nothing is computed where `sum` is kept already. With `parts`, `x` is the sum of so many parts in the
/// device's scratch: see [`crate::ops::linear::forward_in_parts`].
pub fn forward(p: &mut Pass, sum: &Act, (x, parts): (&Act, u32), norm: &Norm, stream: &Act, scale: f32) {
    let rows = p.tokens;
    if sum.is_kept() {
        add_up(p, x, parts);
        // The gradient of a norm reads what the norm read.
        if !norm.identity {
            x.store_fresh(p.rec, rows);
        }
        return;
    }
    match sum.tiles() {
        Some(tiles) => {
            let f32 = sum.has_rows().then(|| sum.rows());
            coop16::forward(p.rec, f32, (tiles, Then::Sum), (x, parts), norm, stream.rows(), scale, rows);
        }
        None => {
            add_up(p, x, parts);
            x.store_fresh(p.rec, rows);
            let x = x.f32(p.rec, rows);
            plain::forward(p.rec, sum.rows(), &x, norm, Some(stream.rows()), scale, rows);
        }
    }
}

/// `sum = stream + norm(x)` and `next = next_norm(sum)`; `parts` as in [`forward`].
pub fn forward_then_norm(
    p: &mut Pass,
    sum: &Act,
    next: &Act,
    (x, parts): (&Act, u32),
    norm: &Norm,
    stream: &Act,
    next_norm: &Norm,
) {
    let rows = p.tokens;
    match next.tiles() {
        Some(tiles) => {
            let then = (tiles, Then::Norm(next_norm));
            coop16::forward(p.rec, Some(sum.rows()), then, (x, parts), norm, stream.rows(), 1.0, rows);
        }
        None => {
            add_up(p, x, parts);
            x.store_fresh(p.rec, rows);
            let x = x.f32(p.rec, rows);
            plain::forward(p.rec, sum.rows(), &x, norm, Some(stream.rows()), 1.0, rows);
            plain::forward(p.rec, next.rows(), sum.rows(), next_norm, None, 1.0, rows);
        }
    }
}

/// `sum = scale·(stream + norm(x))`, rounded to tiles and in their staging memory, and `next = next_norm(sum)`; `parts` as in [`forward`].
/// Returns whether both were computed: kernels that pack their results do that, for a next norm with weights.
pub fn forward_kept_then_norm(
    p: &mut Pass,
    [sum, next]: [&Act; 2],
    (x, parts): (&Act, u32),
    [norm, next_norm]: [&Norm; 2],
    stream: &Act,
    scale: f32,
) -> bool {
    let (Some(sum_tiles), Some(next_tiles), Some(_)) = (sum.tiles(), next.tiles(), &next_norm.weight) else {
        return false;
    };
    let then = (next_tiles, Then::NormOfTiles(next_norm, sum_tiles));
    let (y, stream) = (sum.staging(), stream.rows());
    coop16::forward(p.rec, Some(&y), then, (x, parts), norm, stream, scale, p.tokens);
    true
}

/// Adds up the parts of `x`, if it is in parts.
fn add_up(p: &mut Pass, x: &Act, parts: u32) {
    if parts > 0 {
        partial_sums::add_up(p.rec, &x.staging(), p.tokens, parts);
    }
}
