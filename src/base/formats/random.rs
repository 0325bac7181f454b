//! Random blocks for tests and benchmarks.

use rand::{Rng, RngExt, SeedableRng};

use super::{GgmlType, Scales};

/// Random valid blocks for tests and benchmarks. Every bit of quants and sub-scales is random.
///
/// The f16 scales of quantized blocks (and F16 values) are finite: mostly ±2⁻⁸…2⁻⁵, sometimes subnormal (as real Q6_K
/// scales are) or ±0. The powers of two of MXFP4 are mostly 2⁻⁹…2⁻⁶, sometimes less, and
/// the scales of NVFP4 below 2⁻². F32 and BF16 values are ±2⁻⁸…2⁻¹, sometimes ±0.
///
/// # Panics
/// If `ty` is not [`GgmlType::supported`].
pub fn random_blocks(ty: GgmlType, blocks: usize, seed: u64) -> Vec<u8> {
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut bytes = vec![0; blocks * ty.block_bytes()];
    random.fill_bytes(&mut bytes);
    // Scales get a sign, an exponent from a narrow range or zero, and keep their random mantissa.
    let format = ty.format().unwrap_or_else(|| panic!("{ty:?} is not supported"));
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        let class: u8 = random.random_range(0..16);
        match format.scales {
            Scales::UpperHalf => {
                let exponent: u16 = if class == 0 { 0 } else { random.random_range(119..=126) };
                let top = block.len() - 2;
                let bits = u16::from_le_bytes([block[top], block[top + 1]]);
                let bits = if class == 0 { bits & 0x8000 } else { bits & 0x807f | exponent << 7 };
                if class == 0 {
                    block.fill(0);
                }
                block[top..].copy_from_slice(&bits.to_le_bytes());
            }
            Scales::Halves(places) => {
                for &at in places {
                    let bits = u16::from_le_bytes([block[at], block[at + 1]]);
                    block[at..at + 2].copy_from_slice(&scale(&mut random, class, bits).to_le_bytes());
                }
            }
            Scales::Quarters(at) => {
                let bits = random.random();
                set_quarters(&mut block[at..], scale(&mut random, class, bits));
            }
            Scales::Ue4m3(count) => {
                for x in &mut block[..count] {
                    *x = if class == 0 { 0 } else { *x & 7 | random.random_range(0..=4) << 3 };
                }
            }
            Scales::Exponent(at) => {
                block[at] =
                    if class < 3 { random.random_range(98..=117) } else { random.random_range(118..=121) };
            }
        }
    }
    bytes
}

/// An f16 scale of the random mantissa and sign in `bits`: mostly ordinary, in some classes of blocks subnormal or zero.
fn scale(random: &mut impl Rng, class: u8, bits: u16) -> u16 {
    match class {
        0 => bits & 0x8000,
        1 | 2 => bits & 0x83ff,
        _ => bits & 0x83ff | random.random_range(7..=10u16) << 10,
    }
}

/// Random blocks as [`random_blocks`] makes them, whose scales are those of values of standard deviation `std`.
///
/// # Panics
/// If `ty` is not a format of blocks whose kernels are here.
pub fn random_blocks_like(ty: GgmlType, blocks: usize, seed: u64, std: f64) -> Vec<u8> {
    let mut bytes = random_blocks(ty, blocks, seed);
    let format = ty.format().unwrap_or_else(|| panic!("{ty:?} is not supported"));
    let factors = format.planes.iter().find_map(|plane| plane.factors.as_ref());
    let factors = factors.unwrap_or_else(|| panic!("{ty:?} has no scales"));
    let word = factors.word(std).0.to_le_bytes();
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        match format.scales {
            Scales::UpperHalf => {}
            Scales::Halves(places) => {
                places.iter().for_each(|&at| block[at..at + 2].copy_from_slice(&word[..2]))
            }
            Scales::Exponent(at) => block[at] = word[0],
            Scales::Ue4m3(count) => block[..count].fill(word[0]),
            Scales::Quarters(at) => set_quarters(&mut block[at..], u16::from_le_bytes([word[0], word[1]])),
        }
    }
    bytes
}

/// Puts four bits of an f16 above each of four numbers of twelve bits.
fn set_quarters(numbers: &mut [u8], half: u16) {
    for (i, number) in numbers.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        number[1] = number[1] & 15 | ((half >> (4 * i) & 15) as u8) << 4;
    }
}
