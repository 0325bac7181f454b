//! Inputs of cases, and plain sums of rows.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::base::formats::GgmlType;

/// Uniform in [-1, 1), fixed by the seed.
pub fn values(seed: u64, len: usize) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| 2.0 * random.random::<f32>() - 1.0).collect()
}

/// The values in f64.
pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// `y + scale·x`.
pub fn plus(y: &[f64], scale: f64, x: &[f64]) -> Vec<f64> {
    assert_eq!(y.len(), x.len(), "as many values");
    y.iter().zip(x).map(|(y, x)| y + scale * x).collect()
}

/// `scale·x`.
pub fn scaled(scale: f32, x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| f64::from(scale) * x).collect()
}

/// Rows of very different size, as in a model's activations and gradients, where `spread`: see [`level`].
pub fn rows(seed: u64, height: usize, width: usize, spread: bool) -> Vec<f32> {
    let mut values = values(seed, height * width);
    for (t, row) in values.chunks_mut(width).enumerate().filter(|_| spread) {
        row.iter_mut().for_each(|x| *x *= 2f32.powi(exponent(t)));
    }
    values
}

/// The inverse of the size of a row of [`rows`], so that one tolerance fits all of them.
pub fn level(row: usize) -> f64 {
    2f64.powi(-exponent(row))
}

fn exponent(row: usize) -> i32 {
    (row as i32 * 29) % 81 - 40
}

/// Rows of `left` and `right` side by side.
pub fn beside(left: &[f32], left_width: usize, right: &[f32], right_width: usize) -> Vec<f32> {
    if left_width == 0 || right_width == 0 {
        return [left, right].concat();
    }
    left.chunks(left_width).zip(right.chunks(right_width)).flat_map(|(l, r)| [l, r].concat()).collect()
}

/// Columns `from..from + count` of every row.
pub fn part(rows: &[f64], width: usize, from: usize, count: usize) -> Vec<f64> {
    rows.chunks(width).flat_map(|row| &row[from..from + count]).copied().collect()
}

/// Odd multiples of the smallest width that rows of `ty` can have.
pub fn widths(ty: GgmlType) -> [usize; 3] {
    match ty.block_len() {
        1 => [4, 20, 4 * 63],
        32 => [32, 3 * 32, 5 * 32],
        _ => [256, 2 * 256, 3 * 256],
    }
}

/// PCG output function, RXS-M-XS 32: shaders/common/pcg.wgsl.
pub fn pcg(value: u32) -> u32 {
    let state = value.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let word = ((state >> ((state >> 28) + 4)) ^ state).wrapping_mul(277_803_737);
    (word >> 22) ^ word
}
