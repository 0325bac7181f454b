//! The layout in which the shaders read a matrix.
//!
//! A *slice* is 32 neighbouring columns of one row. Quantized formats become planes, one after the other. A plane is stored
//! slice by slice, and within a slice row by row: neighbouring threads read neighbouring rows, so their reads are contiguous, in
//! the forward product and in the transposed one. For a matrix of `N` rows and `K` columns:
//!
//! | format | planes |
//! |---|---|
//! | Q4_0 | nibbles `[K/32, N]` of 16 bytes, d `[K/32, N]` of 2 |
//! | Q4_1 | nibbles `[K/32, N]` of 16 bytes, d and m `[K/32, N]` of 4 |
//! | Q5_0 | nibbles `[K/32, N]` of 16 bytes, high bits `[K/32, N]` of 4, d `[K/32, N]` of 2 |
//! | Q5_1 | nibbles `[K/32, N]` of 16 bytes, high bits `[K/32, N]` of 4, d and m `[K/32, N]` of 4 |
//! | Q8_0 | quants `[K/32, N]` of 32 bytes, d `[K/32, N]` of 2 |
//! | Q2_K | scales and minima `[K/256, N]` of 16, pairs of bits `[K/32, N]` of 8, d and dmin `[K/256, N]` of 4 |
//! | Q3_K | pairs of bits `[K/32, N]` of 8 bytes, low bits of scales `[K/256, N]` of 8, high bits `[K/32, N]` of 4, high bits of scales `[K/256, N]` of 4, d `[K/256, N]` of 2 |
//! | Q4_K | nibbles `[K/32, N]` of 16 bytes, d, dmin and scales `[K/256, N]` of 16 |
//! | Q5_K | nibbles and headers as Q4_K, high bits `[K/32, N]` of 4 bytes |
//! | Q6_K | low nibbles `[K/32, N]` of 16 bytes, scales `[K/256, N]` of 16, high pairs `[K/32, N]` of 8, d `[K/256, N]` of 2 |
//! | IQ4_NL | nibbles `[K/32, N]` of 16 bytes, d `[K/32, N]` of 2 |
//! | IQ4_XS | nibbles `[K/32, N]` of 16 bytes, d and scales `[K/256, N]` of 8 |
//! | MXFP4 | nibbles `[K/32, N]` of 16 bytes, exponents `[K/32, N]` of 1 |
//! | IQ2_XXS | quants and scales `[K/32, N]` of 8 bytes, d `[K/256, N]` of 2 |
//! | IQ2_XS | quants `[K/32, N]` of 8 bytes, scales `[K/256, N]` of 8, d `[K/256, N]` of 2 |
//! | IQ2_S | quants and signs `[K/32, N]` of 8 bytes, high bits and scales `[K/256, N]` of 16, d `[K/256, N]` of 2 |
//! | IQ3_XXS | quants `[K/32, N]` of 8 bytes, signs and scales `[K/32, N]` of 4, d `[K/256, N]` of 2 |
//! | IQ3_S | quants `[K/32, N]` of 8 bytes, signs `[K/32, N]` of 4, high bits `[K/256, N]` of 8, scales `[K/256, N]` of 4, d `[K/256, N]` of 2 |
//! | IQ1_S | quants `[K/32, N]` of 4 bytes, high bits and scales `[K/32, N]` of 2, d `[K/256, N]` of 2 |
//! | IQ1_M | quants `[K/32, N]` of 4 bytes, high bits and signs `[K/32, N]` of 2, d and scales `[K/256, N]` of 8 |
//! | TQ1_0 | digits `[K/256, N]` of 32, 16 and 4 bytes, d `[K/256, N]` of 2 |
//! | TQ2_0 | pairs of bits `[K/32, N]` of 8 bytes, d `[K/256, N]` of 2 |
//! | NVFP4 | nibbles `[K/32, N]` of 16 bytes, scales `[K/32, N]` of 2 |
//! | Q1_0 | bits `[K/32, N]` of 4 bytes, d `[K/128, N]` of 2 |
//! | Q2_0 | pairs of bits `[K/32, N]` of 8 bytes, d `[K/64, N]` of 2 |
//! | F32, F16, BF16 | as in the file |
//!
//! Matrices of IQ1 to IQ3 begin with the table of their grid, 512 to 4096 bytes: see `grids`.
//!
//! In formats of more than three bits, neighbouring values are in the two halves of a 32-bit word, so that one mask extracts a pair for f16
//! arithmetic; so they are in Q2_K and Q3_K. In the others they follow one another from the lowest bit on. In a slice's
//! nibbles, word `j` has value `8j + 2s` in bits `4s..4s + 4` of its low half and value `8j + 2s + 1` in those of its high half.
//! In its high bits, bit `s` of the low half belongs to value `2s`, and bit `s` of the high half to value `2s + 1`. Word `j` of its
//! (high) pairs has values `16j + 2s` and `16j + 2s + 1` in bits `2s..2s + 2` of its halves.
//! Zeros pad the end to a multiple of 16 bytes. Twin: the readers in `shaders/formats/`.

use std::borrow::Cow;
use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::GgmlType;

/// `bytes`, whole blocks of `rows` rows, in the layout of this module.
///
/// # Panics
/// As [`write_planes`].
pub fn to_planes(ty: GgmlType, rows: usize, bytes: &[u8]) -> Cow<'_, [u8]> {
    if is_as_in_file(ty, bytes.len()) {
        return Cow::Borrowed(bytes);
    }
    let mut planes = vec![MaybeUninit::new(0); planes_bytes(ty, bytes.len())];
    write_planes(ty, rows, bytes, &mut planes);
    // SAFETY: every byte was initialized when it was made.
    Cow::Owned(planes.into_iter().map(|byte| unsafe { byte.assume_init() }).collect())
}

/// Whether a matrix of `bytes` bytes has this layout in its file already.
pub fn is_as_in_file(ty: GgmlType, bytes: usize) -> bool {
    ty.is_row_by_row() && bytes.is_multiple_of(16)
}

/// Size in this layout of a matrix that has `bytes` bytes in its file.
pub fn planes_bytes(ty: GgmlType, bytes: usize) -> usize {
    ty.table().len() + bytes.next_multiple_of(16)
}

/// Writes [`to_planes`] to a place of [`planes_bytes`], which may be memory of the device: writes every byte, and reads none.
///
/// # Panics
/// If `ty` is not [`GgmlType::supported`], if the blocks do not divide into `rows` rows (opening a base checks both), or
/// where the place has another size.
pub fn write_planes(ty: GgmlType, rows: usize, bytes: &[u8], place: &mut [MaybeUninit<u8>]) {
    let format = ty.format().unwrap_or_else(|| panic!("{ty:?} has no planes; opening a base refuses it"));
    assert_eq!(bytes.len() % (rows * ty.block_bytes()).max(1), 0, "rows of whole blocks of {ty:?}");
    assert_eq!(place.len(), planes_bytes(ty, bytes.len()), "the place for a matrix of {} bytes", bytes.len());
    let (table, rest) = place.split_at_mut(format.table.len());
    table.iter_mut().zip(format.table).for_each(|(to, from)| *to = MaybeUninit::new(*from));
    let (rest, padding) = rest.split_at_mut(bytes.len());
    padding.fill(MaybeUninit::new(0));
    (format.write)(&mut Writer { rest, rows: rows.max(1) }, bytes);
}

/// Bytes that a thread copies at a time.
const COPIED: usize = 1 << 20;
/// Rows whose blocks a thread reads at a time: they stay in its cache while it writes one slice after the other.
const STRETCH: usize = 64;

/// Writes the planes of a matrix one after the other.
pub(super) struct Writer<'a> {
    rest: &'a mut [MaybeUninit<u8>],
    rows: usize,
}

impl Writer<'_> {
    /// Copies the matrix as it is in the file.
    pub fn copy(&mut self, bytes: &[u8]) {
        let from = bytes.par_chunks(COPIED);
        self.rest.par_chunks_mut(COPIED).zip(from).for_each(|(to, from)| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = MaybeUninit::new(*from));
        });
    }

    /// Writes the next plane. `pieces` gives `P` entries of `N` bytes for each block, for as many neighbouring slices.
    pub fn plane<B: Sync, const N: usize, const P: usize>(
        &mut self,
        blocks: &[B],
        pieces: impl Fn(&B, &mut [[u8; N]; P]) + Sync,
    ) {
        let rows = self.rows;
        let across = blocks.len() / rows;
        let rest = &mut self.rest;
        let out = rest.split_off_mut(..P * blocks.len() * N).expect("the planes are as large as the blocks");
        let mut stretches = Vec::new();
        for (column, out) in out.chunks_mut(P * rows * N).enumerate() {
            let mut slices = out.chunks_mut(rows * N).map(|slice| slice.chunks_mut(STRETCH * N));
            let mut slices: [_; P] = std::array::from_fn(|_| slices.next().expect("one slice per piece"));
            for first in (0..rows).step_by(STRETCH) {
                let places = slices.each_mut().map(|slice| slice.next().expect("one per stretch"));
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
}

/// The nibbles of the slices of a block in which 32 bytes hold two slices.
pub(super) fn pairs_of_nibbles(qs: &[u8; 128]) -> [[u8; 16]; 8] {
    std::array::from_fn(|slice| nibbles(&qs[slice / 2 * 32..], slice % 2))
}

/// The pairs of bits of the slices of a block in which 32 bytes hold four slices.
pub(super) fn pairs_of_bits(qs: &[u8; 64]) -> [[u8; 8]; 8] {
    std::array::from_fn(|slice| bit_pairs(&qs[slice / 4 * 32..], slice % 4))
}

/// Bits `2·run` and `2·run + 1` of 32 bytes.
fn bit_pairs(bytes: &[u8], run: usize) -> [u8; 8] {
    let word = |half: usize| {
        let place = |i: usize| u32::from(bytes[16 * half + i] >> (2 * run) & 3) << (i / 2 * 2 + i % 2 * 16);
        (0..16).map(place).sum::<u32>()
    };
    (u64::from(word(0)) | u64::from(word(1)) << 32).to_le_bytes()
}

/// The low (`high` is 0) or high nibbles of 32 bytes.
pub(super) fn nibbles(bytes: &[u8], high: usize) -> [u8; 16] {
    pair_nibbles(&std::array::from_fn(|i| bytes[i] >> (4 * high) & 15))
}

/// The low nibbles of 16 bytes, then their high nibbles, as one byte each.
pub(super) fn halves(bytes: &[u8; 16]) -> [u8; 32] {
    std::array::from_fn(|i| bytes[i % 16] >> (i / 16 * 4) & 15)
}

/// 32 nibbles in the order of the layout.
pub(super) fn pair_nibbles(values: &[u8; 32]) -> [u8; 16] {
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

/// 32 high bits in the order of the layout.
pub(super) fn pair_bits(bits: u32) -> [u8; 4] {
    let place = |i: u32| (bits >> i & 1) << (i / 2 + i % 2 * 16);
    (0..32).map(place).sum::<u32>().to_le_bytes()
}
