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
/// Rows whose blocks a thread reads at a time, column by column: their cache lines and pages stay at hand.
const STRETCH: usize = 32;

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
        let mut columns = Vec::with_capacity(across);
        for out in out.chunks_mut(P * rows * N) {
            let mut slices = out.chunks_mut(rows * N).map(|slice| slice.chunks_mut(STRETCH * N));
            columns.push([(); P].map(|()| slices.next().expect("one slice per piece")));
        }
        let mut next = || -> Vec<[_; P]> {
            let columns = columns.iter_mut();
            columns
                .map(|slices| slices.each_mut().map(|slice| slice.next().expect("one per stretch")))
                .collect()
        };
        let stretches: Vec<_> =
            blocks.chunks(STRETCH * across.max(1)).map(|blocks| (blocks, next())).collect();
        stretches.into_par_iter().for_each(|(blocks, columns)| {
            let mut read = [[[0; N]; P]; STRETCH];
            for (column, mut places) in columns.into_iter().enumerate() {
                for (block, read) in blocks[column..].iter().step_by(across).zip(&mut read) {
                    pieces(block, read);
                }
                for (slice, place) in places.iter_mut().enumerate() {
                    for (place, read) in place.as_chunks_mut::<N>().0.iter_mut().zip(&read) {
                        *place = read[slice].map(MaybeUninit::new);
                    }
                }
            }
        });
    }
}

/// The nibbles of the slices of a block in which 32 bytes hold two slices.
pub(super) fn pairs_of_nibbles(qs: &[u8; 128]) -> [[u8; 16]; 8] {
    let (runs, _) = qs.as_chunks::<32>();
    std::array::from_fn(|slice| nibbles(&runs[slice / 2], slice % 2))
}

/// The pairs of bits of the slices of a block in which 32 bytes hold four slices.
pub(super) fn pairs_of_bits(qs: &[u8; 64]) -> [[u8; 8]; 8] {
    let (runs, _) = qs.as_chunks::<32>();
    std::array::from_fn(|slice| bit_pairs(&runs[slice / 4], slice % 4))
}

/// Bit `slice` of each of 32 bytes, for all eight slices of a block.
pub(super) fn high_bits(bytes: &[u8; 32]) -> [[u8; 4]; 8] {
    let eights = bytes.as_chunks::<8>().0.iter().map(|eight| u64::from_le_bytes(*eight));
    let mut bits = [0; 8];
    for (i, eight) in eights.enumerate() {
        for (slice, bits) in bits.iter_mut().enumerate() {
            // The product moves the lowest bit of byte k to bit 56 + k.
            let gathered = (eight >> slice & 0x0101_0101_0101_0101).wrapping_mul(0x0102_0408_1020_4080) >> 56;
            *bits |= (gathered as u32) << (8 * i);
        }
    }
    bits.map(pair_bits)
}

/// Bits `2·run` and `2·run + 1` of 32 bytes.
fn bit_pairs(bytes: &[u8; 32], run: usize) -> [u8; 8] {
    let mut words = [0; 8];
    for (word, sixteen) in words.as_chunks_mut::<4>().0.iter_mut().zip(bytes.as_chunks::<16>().0) {
        let sixteen = u128::from_le_bytes(*sixteen) >> (2 * run);
        let [even, odd] = [sixteen, sixteen >> 8].map(|x| {
            // Two bits in each sixteen: two of them into four bits, two of those into a byte, two of those into the lowest sixteen.
            let x = x & 0x0003_0003_0003_0003_0003_0003_0003_0003;
            let x = (x | x >> 14) & 0x0000_000f_0000_000f_0000_000f_0000_000f;
            let x = (x | x >> 28) & 0x0000_0000_0000_00ff_0000_0000_0000_00ff;
            (x | x >> 56) as u16
        });
        *word = (u32::from(even) | u32::from(odd) << 16).to_le_bytes();
    }
    words
}

/// The low (`high` is 0) or high nibbles of 32 bytes.
pub(super) fn nibbles(bytes: &[u8; 32], high: usize) -> [u8; 16] {
    pair_nibbles(&bytes.map(|byte| byte >> (4 * high) & 15))
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
    let [even, odd] = [bits, bits >> 1].map(|x| {
        let x = x & 0x5555_5555;
        let x = (x | x >> 1) & 0x3333_3333;
        let x = (x | x >> 2) & 0x0f0f_0f0f;
        let x = (x | x >> 4) & 0x00ff_00ff;
        (x | x >> 8) & 0xffff
    });
    (even | odd << 16).to_le_bytes()
}
