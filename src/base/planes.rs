//! The layout in which the shaders read a matrix.
//!
//! A *slice* is 32 neighbouring columns of one row. Quantized formats become planes, one after the other, each slice by
//! slice, and within a slice row by row: what neighbouring threads read of neighbouring rows lies side by side, in the
//! forward product and in the transposed one. For a matrix of `N` rows and `K` columns:
//!
//! | format | planes |
//! |---|---|
//! | Q4_0 | nibbles `[K/32, N]` of 16 bytes, d `[K/32, N]` of 2 |
//! | Q5_0 | nibbles `[K/32, N]` of 16 bytes, high bits `[K/32, N]` of 4, d `[K/32, N]` of 2 |
//! | Q8_0 | quants `[K/32, N]` of 32 bytes, d `[K/32, N]` of 2 |
//! | Q4_K | nibbles `[K/32, N]` of 16 bytes, d, dmin and scales `[K/256, N]` of 16 |
//! | Q5_K | nibbles and headers as Q4_K, high bits `[K/32, N]` of 4 bytes |
//! | Q6_K | low nibbles `[K/32, N]` of 16 bytes, scales `[K/256, N]` of 16, high pairs `[K/32, N]` of 8, d `[K/256, N]` of 2 |
//! | F32, F16, BF16 | as in the file |
//!
//! Neighbouring values lie in the two halves of a word of 32 bits, so that one mask takes a pair for f16 arithmetic: of a slice's
//! nibbles, word `j` holds values `8j + 2s` in bits `4s..4s + 4` of its low half and `8j + 2s + 1` in those of its high half. Of its
//! high bits, bit `s` of the low half belongs to value `2s`, of the high half to `2s + 1`; word `j` of its high pairs holds values
//! `16j + 2s` and `16j + 2s + 1` in bits `2s..2s + 2` of its halves.
//! Zeros fill the end up to a multiple of 16 bytes. Twin: the loaders in `shaders/formats/`.

use std::borrow::Cow;
use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::quant::{BlockQ4_0, BlockQ4K, BlockQ5_0, BlockQ5K, BlockQ6K, BlockQ8_0, GgmlType};

/// `bytes`, whole blocks of `rows` rows, in the layout of this module.
///
/// # Panics
/// As [`pack_into`].
pub fn pack(ty: GgmlType, rows: usize, bytes: &[u8]) -> Cow<'_, [u8]> {
    if is_as_in_file(ty, bytes.len()) {
        return Cow::Borrowed(bytes);
    }
    let mut packed = vec![MaybeUninit::new(0); packed_bytes(bytes.len())];
    pack_into(ty, rows, bytes, &mut packed);
    // SAFETY: every byte was initialized when it was made.
    Cow::Owned(packed.into_iter().map(|byte| unsafe { byte.assume_init() }).collect())
}

/// Whether a matrix that has `bytes` in its file has this layout there already.
pub fn is_as_in_file(ty: GgmlType, bytes: usize) -> bool {
    matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16) && bytes.is_multiple_of(16)
}

/// Bytes of a matrix in the layout of this module that has `bytes` in its file.
pub fn packed_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(16)
}

/// Writes [`pack`] to a place of [`packed_bytes`], which may be memory of the device: all of it is written, and nothing read.
///
/// # Panics
/// Where `ty` is not [`GgmlType::supported`] or the blocks do not divide into `rows` rows (openers check both), or where the
/// place has another size.
pub fn pack_into(ty: GgmlType, rows: usize, bytes: &[u8], place: &mut [MaybeUninit<u8>]) {
    assert!(ty.supported(), "{ty:?} has no GPU layout; openers refuse it");
    assert_eq!(bytes.len() % (rows * ty.block_bytes()).max(1), 0, "rows of whole blocks of {ty:?}");
    assert_eq!(place.len(), packed_bytes(bytes.len()), "the place for a matrix of {} bytes", bytes.len());
    let (mut rest, end) = place.split_at_mut(bytes.len());
    end.fill(MaybeUninit::new(0));
    let rest = &mut rest;
    match ty {
        GgmlType::Q4_0 => {
            let blocks: &[BlockQ4_0] = bytemuck::cast_slice(bytes);
            plane(rest, blocks, rows, |b, [nibbles]| *nibbles = pair_nibbles(&halves(&b.qs)));
            plane(rest, blocks, rows, |b, [d]| *d = b.d);
        }
        GgmlType::Q5_0 => {
            let blocks: &[BlockQ5_0] = bytemuck::cast_slice(bytes);
            plane(rest, blocks, rows, |b, [nibbles]| *nibbles = pair_nibbles(&halves(&b.qs)));
            plane(rest, blocks, rows, |b, [high]| *high = pair_bits(u32::from_le_bytes(b.qh)));
            plane(rest, blocks, rows, |b, [d]| *d = b.d);
        }
        GgmlType::Q8_0 => {
            let blocks: &[BlockQ8_0] = bytemuck::cast_slice(bytes);
            plane(rest, blocks, rows, |b, [quants]| *quants = b.qs.map(i8::cast_unsigned));
            plane(rest, blocks, rows, |b, [d]| *d = b.d);
        }
        GgmlType::Q4_K => {
            let blocks: &[BlockQ4K] = bytemuck::cast_slice(bytes);
            plane(rest, blocks, rows, |b, slices: &mut [_; 8]| *slices = pairs_of_nibbles(&b.qs));
            plane(rest, blocks, rows, |b, [header]| *header = k_header(b.d, b.dmin, b.scales));
        }
        GgmlType::Q5_K => {
            let blocks: &[BlockQ5K] = bytemuck::cast_slice(bytes);
            plane(rest, blocks, rows, |b, slices: &mut [_; 8]| *slices = pairs_of_nibbles(&b.qs));
            plane(rest, blocks, rows, |b, [header]| *header = k_header(b.d, b.dmin, b.scales));
            plane(rest, blocks, rows, |b, slices: &mut [[u8; 4]; 8]| {
                *slices = std::array::from_fn(|slice| {
                    let bits = b.qh.iter().enumerate().map(|(i, byte)| u32::from(byte >> slice & 1) << i);
                    pair_bits(bits.sum())
                });
            });
        }
        GgmlType::Q6_K => {
            let blocks: &[BlockQ6K] = bytemuck::cast_slice(bytes);
            plane(rest, blocks, rows, |b, slices: &mut [_; 8]| {
                *slices = std::array::from_fn(|slice| {
                    nibbles(&b.ql[slice / 4 * 64 + slice % 2 * 32..], slice % 4 / 2)
                });
            });
            plane(rest, blocks, rows, |b, [scales]| *scales = b.scales.map(i8::cast_unsigned));
            plane(rest, blocks, rows, |b, slices: &mut [_; 8]| {
                *slices = std::array::from_fn(|slice| high_pairs(&b.qh[slice / 4 * 32..], slice % 4));
            });
            plane(rest, blocks, rows, |b, [d]| *d = b.d);
        }
        _ => {
            let from = bytes.par_chunks(COPIED);
            rest.par_chunks_mut(COPIED).zip(from).for_each(|(to, from)| {
                to.iter_mut().zip(from).for_each(|(to, from)| *to = MaybeUninit::new(*from));
            });
        }
    }
}

/// Bytes that a thread copies at a time.
const COPIED: usize = 1 << 20;
/// Rows whose blocks a thread reads at a time: they stay in its cache while it writes one slice after the other.
const STRETCH: usize = 64;

/// Of each block `P` pieces of `N` bytes, for as many neighbouring slices: slice by slice, row by row within.
fn plane<B: Sync, const N: usize, const P: usize>(
    rest: &mut &mut [MaybeUninit<u8>],
    blocks: &[B],
    rows: usize,
    pieces: impl Fn(&B, &mut [[u8; N]; P]) + Sync,
) {
    let (rows, across) = (rows.max(1), blocks.len() / rows.max(1));
    let out = rest.split_off_mut(..P * blocks.len() * N).expect("the planes are as large as the blocks");
    let mut stretches = Vec::new();
    for (column, out) in out.chunks_mut(P * rows * N).enumerate() {
        let mut slices = out.chunks_mut(rows * N).map(|slice| slice.chunks_mut(STRETCH * N));
        let mut slices: [_; P] = std::array::from_fn(|_| slices.next().expect("as many as pieces"));
        for first in (0..rows).step_by(STRETCH) {
            let places = slices.each_mut().map(|slice| slice.next().expect("as many as stretches"));
            stretches.push((column, first, places));
        }
    }
    stretches.into_par_iter().for_each(|(column, first, mut places)| {
        let mut read = [[[0; N]; P]; STRETCH];
        let count = STRETCH.min(rows - first);
        for (row, read) in read[..count].iter_mut().enumerate() {
            pieces(&blocks[(first + row) * across + column], read);
        }
        for (slice, place) in places.iter_mut().enumerate() {
            for (place, read) in place.as_chunks_mut::<N>().0.iter_mut().zip(&read) {
                *place = read[slice].map(MaybeUninit::new);
            }
        }
    });
}

/// The slices of a block that keeps two of them in the nibbles of 32 bytes.
fn pairs_of_nibbles(qs: &[u8; 128]) -> [[u8; 16]; 8] {
    std::array::from_fn(|slice| nibbles(&qs[slice / 2 * 32..], slice % 2))
}

/// The low (`high` 0) or high nibbles of 32 bytes.
fn nibbles(bytes: &[u8], high: usize) -> [u8; 16] {
    pair_nibbles(&std::array::from_fn(|i| bytes[i] >> (4 * high) & 15))
}

/// The low nibbles of 16 bytes, then the high ones.
fn halves(bytes: &[u8; 16]) -> [u8; 32] {
    std::array::from_fn(|i| bytes[i % 16] >> (i / 16 * 4) & 15)
}

fn pair_nibbles(values: &[u8; 32]) -> [u8; 16] {
    let mut words = [0; 16];
    for (word, eight) in words.as_chunks_mut::<4>().0.iter_mut().zip(values.as_chunks::<8>().0) {
        let eight = u64::from_le_bytes(*eight);
        let [even, odd] = [eight, eight >> 8].map(|x| {
            // A nibble in each sixteen bits: two of them into a byte, two of those into the lowest sixteen.
            let x = x & 0x000f_000f_000f_000f;
            let x = (x | x >> 12) & 0x0000_00ff_0000_00ff;
            (x | x >> 24) as u16
        });
        *word = (u32::from(even) | u32::from(odd) << 16).to_le_bytes();
    }
    words
}

/// Bit `i` to its place.
fn pair_bits(bits: u32) -> [u8; 4] {
    let place = |i: u32| (bits >> i & 1) << (i / 2 + i % 2 * 16);
    (0..32).map(place).sum::<u32>().to_le_bytes()
}

/// Bits `2·run` and `2·run + 1` of 32 bytes.
fn high_pairs(bytes: &[u8], run: usize) -> [u8; 8] {
    let word = |half: usize| {
        let place = |i: usize| u32::from(bytes[16 * half + i] >> (2 * run) & 3) << (i / 2 * 2 + i % 2 * 16);
        (0..16).map(place).sum::<u32>()
    };
    (u64::from(word(0)) | u64::from(word(1)) << 32).to_le_bytes()
}

fn k_header(d: [u8; 2], dmin: [u8; 2], scales: [u8; 12]) -> [u8; 16] {
    let mut header = [0; 16];
    header[..2].copy_from_slice(&d);
    header[2..4].copy_from_slice(&dmin);
    header[4..].copy_from_slice(&scales);
    header
}
