//! The end of a block: its normed output added to the stream.
//!
//! Forward alone: backward takes the two norms apart, as [`crate::ops::rms_norm`] has them.

pub mod coop16;
pub mod sum;

use crate::ops::act::Act;
use crate::ops::norm::Norm;
use crate::ops::pass::Pass;
use crate::ops::pending::Pending;
use sum::{Block, Sum};

/// `sum = scale·(stream + norm(x))`, which may wait for the norm that reads `sum`. Nothing is computed where `sum` is kept already.
pub fn forward(p: &mut Pass, sum: &Act, x: &Act, norm: &Norm, stream: &Act, scale: f32) {
    let block = p
        .decoding
        .map(|decoding| Block { term: p.rec.take_term(x, p.tokens), normed: decoding.normed.clone() });
    let parts = if block.is_some() { 0 } else { p.rec.take_parts(x, p.tokens) };
    let is_kept = sum.is_kept();
    let x = p.rec.as_left(x);
    let waits = Sum { x, parts, norm: norm.clone(), stream: stream.clone(), scale, block };
    match is_kept {
        true => waits.skip(p.rec.now(), p.tokens),
        false => p.rec.leave(sum, p.tokens, Pending::Sum(Box::new(waits))),
    }
}
