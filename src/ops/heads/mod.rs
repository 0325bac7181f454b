//! RMSNorm and rotary embedding of heads: queries and keys have both, values the norm alone.

pub mod coop16;
pub mod coop16_backward;

use crate::ops::act::Act;
use crate::ops::pass::Pass;
use crate::ops::rms_norm::{Norm, plain};
use crate::ops::rope;
use coop16::Turn;

/// `y = rope(norm(x))` for `x` `[T, heads, K]`; without `rotary` the norm alone.
pub fn forward(p: &mut Pass, y: &Act, x: &Act, norm: &Norm, rotary: Option<Turn>, heads: usize) {
    let tokens = p.tokens;
    if let Some(tiles) = y.tiles() {
        return coop16::forward(p.rec, tiles, x, norm, rotary, heads, tokens);
    }
    plain::forward(p.rec, y.rows(), x.rows(), norm, None, 1.0, tokens * heads);
    if let Some((positions, table)) = rotary {
        rope::forward(p.rec, y.rows(), positions, table, heads, tokens);
    }
}

/// The gradient of `x` from `dy`, which is scratch afterwards.
pub fn backward(p: &mut Pass, dx: &Act, dy: &Act, x: &Act, norm: &Norm, rotary: Option<Turn>, heads: usize) {
    let tokens = p.tokens;
    if let Some(tiles) = dx.tiles() {
        return coop16_backward::backward(p.rec, tiles, dy.rows(), x, norm, rotary, heads, tokens);
    }
    if let Some((positions, table)) = rotary {
        rope::backward(p.rec, dy.rows(), positions, table, heads, tokens);
    }
    plain::backward(p.rec, dx.rows(), dy.rows(), x.rows(), norm, tokens * heads, None);
}

/// Adds the gradient of `x` from `dy` to `dx`, of heads without rotary embedding.
pub fn backward_add(p: &mut Pass, dx: &Act, dy: &Act, x: &Act, norm: &Norm, heads: usize) {
    plain::backward(p.rec, dx.rows(), dy.rows(), x.rows(), norm, p.tokens * heads, Some(1.0));
}
