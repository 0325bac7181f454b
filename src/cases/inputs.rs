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
