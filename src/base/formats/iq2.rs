//! Parts of the formats whose quants number points of a grid and whose signs are bits: IQ2 and IQ3.

use super::grids::entry;

/// The levels of IQ2. Twin: shaders/formats/iq2.wgsl.
const LEVELS: [f32; 3] = [8.0, 25.0, 43.0];

/// The signs of eight values by seven of them: their number of minus signs is even. Must match ggml-common.h `ksigns_iq2xs`.
pub fn eight_signs(seven: u32) -> u32 {
    let seven = seven & 127;
    seven | (seven.count_ones() & 1) << 7
}

/// The signs of 32 values by four times seven bits.
pub fn slice_signs(bits: u32) -> u32 {
    (0..4).fold(0, |signs, eight| signs | eight_signs(bits >> (7 * eight)) << (8 * eight))
}

/// A slice of IQ2: four entries of the grid, a bit for each minus sign, and the factor of each half.
pub fn slice(grid: &[u8], entries: [usize; 4], signs: u32, factors: [f32; 2]) -> [f32; 32] {
    std::array::from_fn(|i| {
        let level = LEVELS[usize::from(entry(grid, entries[i / 8]) >> (2 * (i % 8)) & 3)];
        signed(factors[i / 16] * level, signs >> i)
    })
}

/// A slice of IQ3: eight entries, whose levels `level` has by number, a bit for each minus sign, and a factor.
pub fn slice_of_fours(
    grid: &[u8],
    entries: [usize; 8],
    signs: u32,
    factor: f32,
    level: fn(u16) -> u16,
) -> [f32; 32] {
    std::array::from_fn(|i| {
        let level = level(entry(grid, entries[i / 4]) >> (4 * (i % 4)) & 7);
        signed(factor * f32::from(level), signs >> i)
    })
}

fn signed(value: f32, bit: u32) -> f32 {
    if bit & 1 == 1 { -value } else { value }
}
