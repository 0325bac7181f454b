//! Gated short convolution: `y[t] = c[t]·Σ_j w[j]·u[t − n + 1 + j]` with `u = b·x`. Rows before a sample's first are zero.

use super::delta::conv;

/// `bcx` `[T, 3, C]`, `w` `[C, n]`, `starts` `[T]` -> `[T, C]`. The last of the `n` weights of a channel is that of the token itself.
pub fn forward(bcx: &[f64], w: &[f64], starts: &[u32]) -> Vec<f64> {
    let [b, c, x] = parts(bcx, starts.len());
    product(&c, &conv::forward(&product(&b, &x), w, starts))
}

/// `dy` `[T, C]` -> `dbcx` `[T, 3, C]`. The weights are frozen.
pub fn backward(dy: &[f64], bcx: &[f64], w: &[f64], starts: &[u32]) -> Vec<f64> {
    let [b, c, x] = parts(bcx, starts.len());
    let dc = product(dy, &conv::forward(&product(&b, &x), w, starts));
    let du = conv::backward(&product(dy, &c), w, starts);
    let (db, dx) = (product(&du, &x), product(&du, &b));
    let width = dy.len() / starts.len().max(1);
    let row = |t: usize| [&db, &dc, &dx].map(|part| &part[t * width..][..width]).concat();
    (0..starts.len()).flat_map(row).collect()
}

/// `b`, `c` and `x`, `[T, C]` each.
fn parts(bcx: &[f64], tokens: usize) -> [Vec<f64>; 3] {
    let width = bcx.len() / tokens.max(1) / 3;
    let row = |t: usize, part: usize| &bcx[(3 * t + part) * width..][..width];
    [0, 1, 2].map(|part| (0..tokens).flat_map(|t| row(t, part)).copied().collect())
}

fn product(x: &[f64], y: &[f64]) -> Vec<f64> {
    x.iter().zip(y).map(|(x, y)| x * y).collect()
}
