//! The end of a block: its normed output added to the stream, and the norm that the next block reads.
//!
//! Forward alone: backward takes the two norms apart, as [`crate::ops::rms_norm`] has them.

pub mod coop16;

use crate::ops::act::Act;
use crate::ops::pass::Pass;
use crate::ops::rms_norm::{Norm, plain};
use coop16::Then;

/// `sum = scale·(stream + norm(x))`. Nothing is computed where `sum` is kept already.
pub fn forward(p: &mut Pass, sum: &Act, x: &Act, norm: &Norm, stream: &Act, scale: f32) {
    let rows = p.tokens;
    if sum.is_kept() {
        // The gradient of a norm reads what the norm read.
        if !norm.identity {
            x.store_fresh(p.rec, rows);
        }
        return;
    }
    match sum.tiles() {
        Some(tiles) => {
            let f32 = sum.has_rows().then(|| sum.rows());
            coop16::forward(p.rec, f32, (tiles, Then::Sum), x, norm, stream.rows(), scale, rows);
        }
        None => {
            x.store_fresh(p.rec, rows);
            let x = x.f32(p.rec, rows);
            plain::forward(p.rec, sum.rows(), &x, norm, Some(stream.rows()), scale, rows);
        }
    }
}

/// `sum = stream + norm(x)` and `next = next_norm(sum)`.
pub fn forward_then_norm(
    p: &mut Pass,
    sum: &Act,
    next: &Act,
    x: &Act,
    norm: &Norm,
    stream: &Act,
    next_norm: &Norm,
) {
    let rows = p.tokens;
    match next.tiles() {
        Some(tiles) => {
            let then = (tiles, Then::Norm(next_norm));
            coop16::forward(p.rec, Some(sum.rows()), then, x, norm, stream.rows(), 1.0, rows);
        }
        None => {
            x.store_fresh(p.rec, rows);
            let x = x.f32(p.rec, rows);
            plain::forward(p.rec, sum.rows(), &x, norm, Some(stream.rows()), 1.0, rows);
            plain::forward(p.rec, next.rows(), sum.rows(), next_norm, None, 1.0, rows);
        }
    }
}
