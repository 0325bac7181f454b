//! One block of each quantized format from its values. Twins: the decoders in `base/formats/`.

use half::f16;

use super::search::{
    affine, affine_of_two_bits, among_levels, largest, nearest, nearest_level, symmetric, symmetric_in_turns,
};
use crate::base::formats::{
    BlockIq4Nl, BlockIq4Xs, BlockMxfp4, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0,
    BlockQ5_1, BlockQ5K, BlockQ6K, BlockQ8_0, f32_of, half_scale, scale_min, six_bits,
};

fn half_of(x: f32) -> [u8; 2] {
    f16::from_f32(x).to_le_bytes()
}

/// `1/x`, and 0 for 0.
fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// The value that is largest without its sign gets the most negative integer, which has no positive twin.
/// Must match `quantize_row_q4_0_ref`.
pub fn q4_0(x: &[f32; 32]) -> BlockQ4_0 {
    let d = largest(x) / -8.0;
    // Casts of floats saturate, so that nothing wraps.
    let q = x.map(|v| ((v * inverse(d) + 8.5) as u8).min(15));
    BlockQ4_0 { d: half_of(d), qs: std::array::from_fn(|j| q[j] | q[j + 16] << 4) }
}

/// The integers of `x ≈ d·q + min`, `q` in `0..=top`, with `d` and the minimum.
fn from_minimum(x: &[f32; 32], top: u8) -> ([u8; 32], f32, f32) {
    let min = x.iter().fold(f32::MAX, |min, &v| min.min(v));
    let max = x.iter().fold(f32::MIN, |max, &v| max.max(v));
    let d = (max - min) / f32::from(top);
    let q = x.map(|v| (((v - min) * inverse(d) + 0.5) as u8).min(top));
    (q, d, min)
}

/// Must match `quantize_row_q4_1_ref`.
pub fn q4_1(x: &[f32; 32]) -> BlockQ4_1 {
    let (q, d, min) = from_minimum(x, 15);
    BlockQ4_1 { d: half_of(d), m: half_of(min), qs: std::array::from_fn(|j| q[j] | q[j + 16] << 4) }
}

/// Must match `quantize_row_q5_1_ref`.
pub fn q5_1(x: &[f32; 32]) -> BlockQ5_1 {
    let (q, d, min) = from_minimum(x, 31);
    let high = (0..32).fold(0u32, |bits, j| bits | u32::from(q[j] >> 4) << j);
    BlockQ5_1 {
        d: half_of(d),
        m: half_of(min),
        qh: high.to_le_bytes(),
        qs: std::array::from_fn(|j| q[j] & 15 | (q[j + 16] & 15) << 4),
    }
}

/// As [`q4_0`] with a fifth bit. Must match `quantize_row_q5_0_ref`.
pub fn q5_0(x: &[f32; 32]) -> BlockQ5_0 {
    let d = largest(x) / -16.0;
    let q = x.map(|v| ((v * inverse(d) + 16.5) as u8).min(31));
    let high = (0..32).fold(0u32, |bits, j| bits | u32::from(q[j] >> 4) << j);
    BlockQ5_0 {
        d: half_of(d),
        qh: high.to_le_bytes(),
        qs: std::array::from_fn(|j| q[j] & 15 | (q[j + 16] & 15) << 4),
    }
}

/// Must match `quantize_row_q8_0_ref`.
pub fn q8_0(x: &[f32; 32]) -> BlockQ8_0 {
    let d = largest(x).abs() / 127.0;
    BlockQ8_0 { d: half_of(d), qs: x.map(|v| (v * inverse(d)).round() as i8) }
}

/// Must match `quantize_row_q2_K_ref`.
pub fn q2_k(x: &[f32; 256]) -> BlockQ2K {
    let (runs, _) = x.as_chunks::<16>();
    let fits: [(f32, f32); 16] = std::array::from_fn(|j| affine_of_two_bits(&runs[j]));
    let most = |part: fn(&(f32, f32)) -> f32| fits.iter().map(part).fold(0.0, f32::max);
    let (scale, min) = (most(|f| f.0), most(|f| f.1));
    let four_bits = |v: f32, most: f32| (nearest(15.0 * inverse(most) * v) as u8).min(15);
    let scales = fits.map(|fit| four_bits(fit.0, scale) | four_bits(fit.1, min) << 4);
    let (d, dmin) = (half_of(scale / 15.0), half_of(min / 15.0));
    // Rounded again, with the scales as they are stored.
    let mut q = [0; 256];
    for ((run, q), scales) in runs.iter().zip(q.as_chunks_mut::<16>().0).zip(scales) {
        let (s, m) = (f32_of(d) * f32::from(scales & 15), f32_of(dmin) * f32::from(scales >> 4));
        if s != 0.0 {
            *q = run.map(|v| nearest(((v + m) / s).clamp(0.0, 3.0)) as u8);
        }
    }
    BlockQ2K { scales, qs: pairs_of_bits(&q), d, dmin }
}

/// The lowest two bits of each integer: four runs of 32 in the same bytes.
fn pairs_of_bits(q: &[u8; 256]) -> [u8; 64] {
    std::array::from_fn(|i| {
        let (half, l) = (i / 32, i % 32);
        (0..4).fold(0, |bits, run| bits | (q[half * 128 + run * 32 + l] & 3) << (2 * run))
    })
}

/// Must match `quantize_row_q3_K_ref`.
pub fn q3_k(x: &[f32; 256]) -> BlockQ3K {
    let (runs, _) = x.as_chunks::<16>();
    let fits: [f32; 16] = std::array::from_fn(|j| symmetric_in_turns(&runs[j], 4.0));
    let factor = -32.0 * inverse(largest(&fits));
    let d = half_of(inverse(factor));
    let mut scales = [0; 12];
    for (j, fit) in fits.iter().enumerate() {
        let s = (nearest((factor * fit).clamp(-32.0, 31.0)) + 32.0) as u8;
        scales[j % 8] |= (s & 15) << (j / 8 * 4);
        scales[8 + j % 4] |= s >> 4 << (j / 4 * 2);
    }
    let mut q = [4u8; 256];
    for ((run, q), s) in runs.iter().zip(q.as_chunks_mut::<16>().0).zip(six_bits(&scales)) {
        let s = f32_of(d) * (f32::from(s) - 32.0);
        if s != 0.0 {
            *q = run.map(|v| (nearest((v / s).clamp(-4.0, 3.0)) + 4.0) as u8);
        }
    }
    let hmask = std::array::from_fn(|l| (0..8).fold(0, |bits, j| bits | q[j * 32 + l] >> 2 << j));
    BlockQ3K { hmask, qs: pairs_of_bits(&q), scales, d }
}

/// Two runs of 16 numbers of levels in the same bytes.
fn level_numbers(x: &[f32; 32], scale: f32) -> [u8; 16] {
    let q = x.map(|v| nearest_level(inverse(scale) * v));
    std::array::from_fn(|j| q[j] | q[j + 16] << 4)
}

/// Must match `quantize_iq4_nl` without importance matrix.
pub fn iq4_nl(x: &[f32; 32]) -> BlockIq4Nl {
    let scale = among_levels(x);
    BlockIq4Nl { d: half_of(scale), qs: level_numbers(x, scale) }
}

/// Must match `quantize_iq4_xs` without importance matrix.
pub fn iq4_xs(x: &[f32; 256]) -> BlockIq4Xs {
    let (runs, _) = x.as_chunks::<32>();
    let fits: [f32; 8] = std::array::from_fn(|j| among_levels(&runs[j]));
    let d = -largest(&fits) / 32.0;
    let (mut low, mut high, mut qs) = ([0; 4], 0u16, [[0; 16]; 8]);
    for (j, fit) in fits.iter().enumerate() {
        let scale = nearest((inverse(d) * fit).clamp(-32.0, 31.0));
        qs[j] = level_numbers(&runs[j], d * scale);
        let s = (scale + 32.0) as u8;
        low[j / 2] |= (s & 15) << (j % 2 * 4);
        high |= u16::from(s >> 4) << (2 * j);
    }
    BlockIq4Xs { d: half_of(d), scales_h: high.to_le_bytes(), scales_l: low, qs }
}

/// The largest value gets a level from 4 on, before doubling. Must match `quantize_row_mxfp4_ref`.
pub fn mxfp4(x: &[f32; 32]) -> BlockMxfp4 {
    let largest = largest(x).abs();
    // The cast takes what lies below 0, as the logarithm of 0 does, to 0.
    let e = (largest.log2().floor() + 125.0) as u8;
    let d = half_scale(e);
    let q = x.map(|v| {
        let size: u8 =
            [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0].map(|middle| u8::from(v.abs() > middle * d)).iter().sum();
        if size > 0 && v < 0.0 { size | 8 } else { size }
    });
    BlockMxfp4 { e, qs: std::array::from_fn(|j| q[j] | q[j + 16] << 4) }
}

/// The eight six-bit scales and minima of Q4_K and Q5_K, their factors, and the integers `0..=top`.
struct Affine {
    d: [u8; 2],
    dmin: [u8; 2],
    scales: [u8; 12],
    q: [u8; 256],
}

fn affine_block(x: &[f32; 256], top: f32, start: f32, steps: u8) -> Affine {
    let (runs, _) = x.as_chunks::<32>();
    let fits: [(f32, f32); 8] = std::array::from_fn(|j| affine(&runs[j], top, start, steps));
    let most = |part: fn(&(f32, f32)) -> f32| fits.iter().map(part).fold(0.0, f32::max);
    let (scale, min) = (most(|f| f.0), most(|f| f.1));
    let six_bits = |v: f32, most: f32| (nearest(63.0 * inverse(most) * v) as u8).min(63);
    let mut scales = [0; 12];
    for (j, fit) in fits.iter().enumerate() {
        let (s, m) = (six_bits(fit.0, scale), six_bits(fit.1, min));
        if j < 4 {
            scales[j] = s;
            scales[j + 4] = m;
        } else {
            scales[j + 4] = s & 15 | (m & 15) << 4;
            scales[j - 4] |= s >> 4 << 6;
            scales[j] |= m >> 4 << 6;
        }
    }
    let (d, dmin) = (half_of(scale / 63.0), half_of(min / 63.0));
    // Rounded again, with the scales as they are stored.
    let mut q = [0; 256];
    for (j, (run, q)) in runs.iter().zip(q.as_chunks_mut::<32>().0).enumerate() {
        let (s, m) = scale_min(j, &scales);
        let (s, m) = (f32_of(d) * s, f32_of(dmin) * m);
        if s != 0.0 {
            *q = run.map(|v| nearest(((v + m) / s).clamp(0.0, top)) as u8);
        }
    }
    Affine { d, dmin, scales, q }
}

/// Must match `quantize_row_q4_K_ref`.
pub fn q4_k(x: &[f32; 256]) -> BlockQ4K {
    let Affine { d, dmin, scales, q } = affine_block(x, 15.0, -1.0, 20);
    let qs = std::array::from_fn(|i| {
        let low = i / 32 * 64 + i % 32;
        q[low] | q[low + 32] << 4
    });
    BlockQ4K { d, dmin, scales, qs }
}

/// Must match `quantize_row_q5_K_ref`.
pub fn q5_k(x: &[f32; 256]) -> BlockQ5K {
    let Affine { d, dmin, scales, q } = affine_block(x, 31.0, -0.5, 15);
    let qs = std::array::from_fn(|i| {
        let low = i / 32 * 64 + i % 32;
        q[low] & 15 | (q[low + 32] & 15) << 4
    });
    let qh = std::array::from_fn(|l| (0..8).fold(0, |bits, j| bits | q[j * 32 + l] >> 4 << j));
    BlockQ5K { d, dmin, scales, qh, qs }
}

/// Must match `quantize_row_q6_K_ref`.
pub fn q6_k(x: &[f32; 256]) -> BlockQ6K {
    let (runs, _) = x.as_chunks::<16>();
    let fits: [f32; 16] = std::array::from_fn(|j| symmetric(&runs[j], 32.0));
    let factor = -128.0 * inverse(largest(&fits));
    let d = half_of(inverse(factor));
    // Casts of floats saturate at 127.
    let scales = fits.map(|fit| nearest(factor * fit) as i8);
    let mut q = [0u8; 256];
    for (j, (run, q)) in runs.iter().zip(q.as_chunks_mut::<16>().0).enumerate() {
        let s = f32_of(d) * f32::from(scales[j]);
        if s != 0.0 {
            *q = run.map(|v| (nearest((v / s).clamp(-32.0, 31.0)) + 32.0) as u8);
        }
    }
    // Each half of 128 holds four runs of 32: low nibbles of two runs, then their high nibbles.
    let at = |half: usize, run: usize, l: usize| q[half * 128 + run * 32 + l];
    let ql = std::array::from_fn(|i| {
        let (half, run, l) = (i / 64, i % 64 / 32, i % 32);
        at(half, run, l) & 15 | (at(half, run + 2, l) & 15) << 4
    });
    let qh = std::array::from_fn(|i| {
        let (half, l) = (i / 32, i % 32);
        (0..4).fold(0, |bits, run| bits | at(half, run, l) >> 4 << (2 * run))
    });
    BlockQ6K { ql, qh, scales, d }
}
