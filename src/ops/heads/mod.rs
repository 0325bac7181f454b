//! RMSNorm and rotary embedding of heads: queries and keys have both, values the norm alone.

pub mod coop16;
pub mod coop16_backward;
pub mod kernels;

use crate::ops::act::Act;
use crate::ops::pass::Pass;
use crate::ops::rms_norm::{self, Norm, plain};
use crate::ops::rope::{self, Table};

/// A rotary embedding: positions `[T]` u32, and the table of cosines and sines.
pub type Rotation<'a> = (&'a wgpu::Buffer, &'a Table);

/// `y = rope(norm(x))` for `x` `[T, heads, K]`; without `rotary` the norm alone.
pub fn forward(p: &mut Pass, y: &Act, x: &Act, norm: &Norm, rotary: Option<Rotation>, heads: usize) {
    let (tokens, x) = (p.tokens, &p.rec.as_left(x));
    if let Some(tiles) = y.tiles() {
        return coop16::forward(p.rec.now(), tiles, x, norm, rotary, heads, tokens);
    }
    let rows = normed_rows(x, norm, tokens);
    if let Some((weights, (positions, table))) = behind_rotation(norm, rotary) {
        plain::forward(p.rec.now(), y.rows(), x.rows(), &norm.unweighted(), None, 1.0, rows);
        return rope::forward_weighted(p.rec.now(), y.rows(), positions, table, weights, heads, tokens);
    }
    plain::forward(p.rec.now(), y.rows(), x.rows(), norm, None, 1.0, rows);
    if let Some((positions, table)) = rotary {
        rope::forward(p.rec.now(), y.rows(), positions, table, heads, tokens);
    }
}

/// The weights of a norm that are multiplied behind a rotary embedding.
fn behind_rotation<'a>(
    norm: &'a Norm,
    rotary: Option<Rotation<'a>>,
) -> Option<(&'a wgpu::Buffer, Rotation<'a>)> {
    norm.weight.as_ref().filter(|_| norm.behind_rotation).zip(rotary)
}

/// [`forward`] of keys and of values: `heads` heads of each, of which `rotary` turns the keys.
pub fn forward_both(
    p: &mut Pass,
    y: [&Act; 2],
    x: [&Act; 2],
    norms: [&Norm; 2],
    rotary: Option<Rotation>,
    heads: usize,
) {
    if let [Some(keys), Some(values)] = y.map(Act::tiles) {
        let [k, v] = x.map(|x| p.rec.as_left(x));
        let x = [&k, &v];
        return coop16::forward_both(p.rec.now(), [keys, values], x, norms, rotary, heads, p.tokens);
    }
    forward(p, y[0], x[0], norms[0], rotary, heads);
    forward(p, y[1], x[1], norms[1], None, heads);
}

/// The gradient of `x` from `dy`, which is scratch afterwards.
pub fn backward(
    p: &mut Pass,
    dx: &Act,
    dy: &Act,
    x: &Act,
    norm: &Norm,
    rotary: Option<Rotation>,
    heads: usize,
) {
    let tokens = p.tokens;
    if let Some((weights, (positions, table))) = behind_rotation(norm, rotary) {
        rope::backward_weighted(p.rec.now(), dy.rows(), positions, table, weights, heads, tokens);
        return backward(p, dx, dy, x, &norm.unweighted(), None, heads);
    }
    let of_rows = takes_rows(norm, dy, heads);
    if let Some(tiles) = dx.tiles().filter(|_| !of_rows) {
        return coop16_backward::backward(p.rec.now(), tiles, dy.rows(), x, norm, rotary, heads, tokens);
    }
    if let Some((positions, table)) = rotary {
        rope::backward(p.rec.now(), dy.rows(), positions, table, heads, tokens);
    }
    if of_rows {
        return rms_norm::backward(p, dx, dy, x, norm);
    }
    let rows = normed_rows(x, norm, tokens);
    plain::backward(p.rec.now(), dx.rows(), dy.rows(), x.rows(), norm, rows, None);
}

/// Whether a norm takes all heads of a token together, which the kernels of heads do not.
fn takes_rows(norm: &Norm, dy: &Act, heads: usize) -> bool {
    heads > 1 && norm.width == dy.rows().stride
}

/// Rows that a norm sees in those of `tokens` tokens: one for each head, or whole ones.
fn normed_rows(x: &Act, norm: &Norm, tokens: usize) -> usize {
    tokens * (x.rows().stride / norm.width)
}

/// [`backward`] of keys and of values: see [`forward_both`].
pub fn backward_both(
    p: &mut Pass,
    dx: [&Act; 2],
    dy: [&Act; 2],
    x: [&Act; 2],
    norms: [&Norm; 2],
    rotary: Option<Rotation>,
    heads: usize,
) {
    if let Some((weights, (positions, table))) = behind_rotation(norms[0], rotary) {
        rope::backward_weighted(p.rec.now(), dy[0].rows(), positions, table, weights, heads, p.tokens);
        return backward_both(p, dx, dy, x, [&norms[0].unweighted(), norms[1]], None, heads);
    }
    let of_rows = takes_rows(norms[0], dy[0], heads);
    if let ([Some(keys), Some(values)], false) = (dx.map(Act::tiles), of_rows) {
        let (dx, dy) = ([keys, values], dy.map(Act::rows));
        return coop16_backward::backward_both(p.rec.now(), dx, dy, x, norms, rotary, heads, p.tokens);
    }
    backward(p, dx[0], dy[0], x[0], norms[0], rotary, heads);
    backward(p, dx[1], dy[1], x[1], norms[1], None, heads);
}

/// Adds the gradient of `x` from `dy` to `dx`, of heads without rotary embedding.
pub fn backward_add(p: &mut Pass, dx: &Act, dy: &Act, x: &Act, norm: &Norm, heads: usize) {
    plain::backward(p.rec.now(), dx.rows(), dy.rows(), x.rows(), norm, p.tokens * heads, Some(1.0));
}
