//! Changes of binary files.

use crate::rng::Rng;

/// Integers at which arithmetic breaks.
pub const INTEGERS: [u64; 20] = [
    0,
    1,
    2,
    3,
    31,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x10_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x4000_0000_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_fff8,
    0xffff_ffff_ffff_ffff,
    (1 << 61) + 3,
];

/// Floats that no arithmetic likes.
pub const FLOATS: [f64; 9] =
    [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e39, 1e308, 5e-324, -1.0, 1e-300];

/// An integer that breaks things, or one near `old` or near a length.
pub fn integer(rng: &mut Rng, old: u64, length: u64) -> u64 {
    match rng.below(6) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        2 => length.wrapping_add(rng.below(3) as u64).wrapping_sub(1),
        3 => old.wrapping_mul(1 << rng.below(40)),
        _ => *rng.pick(&INTEGERS),
    }
}

/// A changed copy.
pub fn mutate(rng: &mut Rng, mut bytes: Vec<u8>) -> Vec<u8> {
    let length = bytes.len();
    if length == 0 {
        return (0..rng.below(64)).map(|_| rng.bits() as u8).collect();
    }
    // Headers are at the start, or, as in Parquet, at the end.
    let at = match rng.below(3) {
        0 => rng.below(length.min(64)),
        1 => length - 1 - rng.below(length.min(256)),
        _ => rng.below(length),
    };
    let end = at + 1 + rng.small(12).min(length - at - 1);
    let put = |bytes: &mut Vec<u8>, value: &[u8]| {
        bytes.iter_mut().skip(at).zip(value).for_each(|(byte, new)| *byte = *new);
    };
    match rng.below(12) {
        0 | 1 => bytes[at] ^= 1 << rng.below(8),
        2 => bytes[at] = rng.bits() as u8,
        3 => bytes.truncate(at),
        4 => drop(bytes.drain(at..end)),
        5 => {
            let piece = bytes[at..end].to_vec();
            let place = rng.below(length);
            bytes.splice(place..place, piece);
        }
        6 => {
            let piece = bytes[at..end].repeat(1 + rng.small(10));
            bytes.splice(at..at, piece);
        }
        7 => put(&mut bytes, &(rng.pick(&FLOATS)).to_le_bytes()),
        8 => put(&mut bytes, &(*rng.pick(&FLOATS) as f32).to_le_bytes()),
        9 => {
            let old = bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            let new = integer(rng, old.into(), (length - at) as u64) as u32;
            put(&mut bytes, &new.to_le_bytes());
        }
        _ => {
            let old =
                bytes.get(at..at + 8).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b));
            let new = integer(rng, old, (length - at) as u64);
            put(&mut bytes, &new.to_le_bytes());
        }
    }
    bytes
}
