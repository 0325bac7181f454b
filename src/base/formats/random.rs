//! Random blocks for tests and benchmarks.

use rand::{Rng, RngExt, SeedableRng};

use super::{GgmlType, Scales};

/// Random valid blocks for tests and benchmarks. Every bit of quants and sub-scales is random.
///
/// The f16 scales of quantized blocks (and F16 values) are finite: mostly ±2⁻⁸…2⁻⁵, sometimes subnormal (as real Q6_K
/// scales are) or ±0. The powers of two of MXFP4 are mostly 2⁻⁹…2⁻⁶, sometimes less. F32 and BF16 values are ±2⁻⁸…2⁻¹, sometimes ±0.
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
        let class = random.random_range(0..16);
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
                    let bits = match class {
                        0 => bits & 0x8000,
                        1 | 2 => bits & 0x83ff,
                        _ => bits & 0x83ff | random.random_range(7..=10u16) << 10,
                    };
                    block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
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
