//! GGML's block formats: their sizes and their values as f32. `planes.rs` has the layout in which the GPU reads them.
//!
//! The decoders do the same f32 operations in the same order as llama.cpp's `dequantize_row_*` (ggml-quants.c),
//! so that every value has the same bits.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use rand::{Rng, RngExt, SeedableRng};

/// A tensor's element or block format. Discriminants are the file's type ids (ggml.h, `enum ggml_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)] // ggml's own names
#[repr(u32)]
pub enum GgmlType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q8_1 = 9,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    Q8_K = 15,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I8 = 24,
    I16 = 25,
    I32 = 26,
    I64 = 27,
    F64 = 28,
    IQ1_M = 29,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    MXFP4 = 39,
    NVFP4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
}

use GgmlType::*;

impl GgmlType {
    /// The formats that kernels and decoders exist for.
    pub const SUPPORTED: [GgmlType; 9] = [F32, F16, BF16, Q4_0, Q5_0, Q8_0, Q4_K, Q5_K, Q6_K];

    /// Every format whose size is known.
    pub const ALL: [GgmlType; 35] = [
        F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, IQ2_XXS, IQ2_XS,
        IQ3_XXS, IQ1_S, IQ4_NL, IQ3_S, IQ2_S, IQ4_XS, I8, I16, I32, I64, F64, IQ1_M, BF16, TQ1_0, TQ2_0,
        MXFP4, NVFP4, Q1_0, Q2_0,
    ];

    /// The format with this id in the file; `None` where ggml has no such format (any more).
    pub fn from_id(id: u32) -> Option<GgmlType> {
        GgmlType::ALL.into_iter().find(|&ty| ty as u32 == id)
    }

    /// `(values, bytes)` of one block. Source: ggml-common.h.
    const fn block(self) -> (usize, usize) {
        match self {
            F32 | I32 => (1, 4),
            F16 | BF16 | I16 => (1, 2),
            I8 => (1, 1),
            F64 | I64 => (1, 8),
            Q4_0 | IQ4_NL => (32, 18),
            Q4_1 => (32, 20),
            Q5_0 => (32, 22),
            Q5_1 => (32, 24),
            Q8_0 => (32, 34),
            Q8_1 => (32, 36),
            Q2_K => (256, 84),
            Q3_K | IQ3_S => (256, 110),
            Q4_K => (256, 144),
            Q5_K => (256, 176),
            Q6_K => (256, 210),
            Q8_K => (256, 292),
            IQ2_XXS | TQ2_0 => (256, 66),
            IQ2_XS => (256, 74),
            IQ3_XXS => (256, 98),
            IQ1_S => (256, 50),
            IQ2_S => (256, 82),
            IQ4_XS => (256, 136),
            IQ1_M => (256, 56),
            TQ1_0 => (256, 54),
            MXFP4 => (32, 17),
            NVFP4 => (64, 36),
            Q1_0 => (128, 18),
            Q2_0 => (64, 18),
        }
    }

    /// Values in one block; rows are whole blocks.
    pub const fn block_len(self) -> usize {
        self.block().0
    }

    /// Bytes of one block in the file.
    pub const fn block_bytes(self) -> usize {
        self.block().1
    }

    /// GGML's name: `Q4_K`.
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// Names of several formats, separated by commas.
    pub fn names(types: &[GgmlType]) -> String {
        types.iter().map(|ty| ty.name()).collect::<Vec<_>>().join(", ")
    }

    /// Whether kernels and decoders exist for this format.
    pub fn supported(self) -> bool {
        GgmlType::SUPPORTED.contains(&self)
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct BlockQ4_0 {
    pub d: [u8; 2],
    pub qs: [u8; 16],
}
const _: () = assert!(size_of::<BlockQ4_0>() == Q4_0.block_bytes());

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct BlockQ5_0 {
    pub d: [u8; 2],
    pub qh: [u8; 4],
    pub qs: [u8; 16],
}
const _: () = assert!(size_of::<BlockQ5_0>() == Q5_0.block_bytes());

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct BlockQ8_0 {
    pub d: [u8; 2],
    pub qs: [i8; 32],
}
const _: () = assert!(size_of::<BlockQ8_0>() == Q8_0.block_bytes());

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct BlockQ4K {
    pub d: [u8; 2],
    pub dmin: [u8; 2],
    pub scales: [u8; 12],
    pub qs: [u8; 128],
}
const _: () = assert!(size_of::<BlockQ4K>() == Q4_K.block_bytes());

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct BlockQ5K {
    pub d: [u8; 2],
    pub dmin: [u8; 2],
    pub scales: [u8; 12],
    pub qh: [u8; 32],
    pub qs: [u8; 128],
}
const _: () = assert!(size_of::<BlockQ5K>() == Q5_K.block_bytes());

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct BlockQ6K {
    pub ql: [u8; 128],
    pub qh: [u8; 64],
    pub scales: [i8; 16],
    pub d: [u8; 2],
}
const _: () = assert!(size_of::<BlockQ6K>() == Q6_K.block_bytes());

pub(super) fn f32_of(half: [u8; 2]) -> f32 {
    f16::from_le_bytes(half).to_f32()
}

/// The values of whole blocks, in order.
///
/// Panics where `ty` is not [`GgmlType::supported`] or `bytes` are not whole blocks: openers check both.
pub fn dequantize(ty: GgmlType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / ty.block_bytes() * ty.block_len()];
    dequantize_into(ty, bytes, &mut values);
    values
}

/// [`dequantize`] into `out`, whose length is the number of values in `bytes`.
pub fn dequantize_into(ty: GgmlType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len() % ty.block_bytes(), 0, "whole blocks of {ty:?}");
    assert_eq!(bytes.len() / ty.block_bytes() * ty.block_len(), out.len(), "one place for each value");
    fn each<B: Pod, const N: usize>(bytes: &[u8], out: &mut [f32], decode: fn(&B, &mut [f32; N])) {
        let (places, _) = out.as_chunks_mut::<N>();
        for (block, place) in bytemuck::cast_slice(bytes).iter().zip(places) {
            decode(block, place);
        }
    }
    match ty {
        F32 => each(bytes, out, |b: &[u8; 4], y: &mut [f32; 1]| y[0] = f32::from_le_bytes(*b)),
        F16 => each(bytes, out, |b: &[u8; 2], y: &mut [f32; 1]| y[0] = f32_of(*b)),
        BF16 => each(bytes, out, |b: &[u8; 2], y: &mut [f32; 1]| y[0] = bf16::from_le_bytes(*b).to_f32()),
        Q4_0 => each(bytes, out, decode_q4_0),
        Q5_0 => each(bytes, out, decode_q5_0),
        Q8_0 => each(bytes, out, decode_q8_0),
        Q4_K => each(bytes, out, decode_q4_k),
        Q5_K => each(bytes, out, decode_q5_k),
        Q6_K => each(bytes, out, decode_q6_k),
        _ => panic!("{ty:?} has no decoder; openers refuse it"),
    }
}

fn decode_q4_0(block: &BlockQ4_0, y: &mut [f32; 32]) {
    let d = f32_of(block.d);
    for (j, &q) in block.qs.iter().enumerate() {
        y[j] = (i32::from(q & 15) - 8) as f32 * d;
        y[j + 16] = (i32::from(q >> 4) - 8) as f32 * d;
    }
}

fn decode_q5_0(block: &BlockQ5_0, y: &mut [f32; 32]) {
    let (d, qh) = (f32_of(block.d), u32::from_le_bytes(block.qh));
    for (j, &q) in block.qs.iter().enumerate() {
        let high = |bit: usize| (qh >> bit & 1) << 4;
        y[j] = ((u32::from(q & 15) | high(j)) as i32 - 16) as f32 * d;
        y[j + 16] = ((u32::from(q >> 4) | high(j + 16)) as i32 - 16) as f32 * d;
    }
}

fn decode_q8_0(block: &BlockQ8_0, y: &mut [f32; 32]) {
    let d = f32_of(block.d);
    for (y, &q) in y.iter_mut().zip(&block.qs) {
        *y = f32::from(q) * d;
    }
}

/// The six-bit scale and minimum of sub-block `j` of 8. Must match ggml-quants.c `get_scale_min_k4`.
pub(super) fn scale_min_k4(j: usize, packed: &[u8; 12]) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

fn decode_q4_k(block: &BlockQ4K, y: &mut [f32; 256]) {
    let (d, dmin) = (f32_of(block.d), f32_of(block.dmin));
    for j in 0..8 {
        let (scale, min) = scale_min_k4(j, &block.scales);
        let (scale, min) = (d * scale, dmin * min);
        for l in 0..32 {
            let q = block.qs[j / 2 * 32 + l] >> (j % 2 * 4) & 15;
            y[j * 32 + l] = scale * f32::from(q) - min;
        }
    }
}

fn decode_q5_k(block: &BlockQ5K, y: &mut [f32; 256]) {
    let (d, dmin) = (f32_of(block.d), f32_of(block.dmin));
    for j in 0..8 {
        let (scale, min) = scale_min_k4(j, &block.scales);
        let (scale, min) = (d * scale, dmin * min);
        for l in 0..32 {
            let q = block.qs[j / 2 * 32 + l] >> (j % 2 * 4) & 15 | (block.qh[l] >> j & 1) << 4;
            y[j * 32 + l] = scale * f32::from(q) - min;
        }
    }
}

fn decode_q6_k(block: &BlockQ6K, y: &mut [f32; 256]) {
    let d = f32_of(block.d);
    for (i, y) in y.iter_mut().enumerate() {
        // Each half of 128 holds four runs of 32: low nibbles of two runs, then their high nibbles.
        let (half, run, l) = (i / 128, i % 128 / 32, i % 32);
        let low = block.ql[half * 64 + run % 2 * 32 + l] >> (run / 2 * 4) & 15;
        let high = block.qh[half * 32 + l] >> (run * 2) & 3;
        let q = i32::from(low | high << 4) - 32;
        *y = d * f32::from(block.scales[i / 16]) * q as f32;
    }
}

/// Random valid blocks for tests and benchmarks: every quant and sub-scale bit is random.
///
/// The f16 scales of quantized blocks (and F16 values) are finite: mostly ±2⁻⁸…2⁻⁵, sometimes subnormal (as real
/// Q6_K scales are) or ±0. F32 and BF16 values are ±2⁻⁸…2⁻¹, sometimes ±0.
/// Panics where `ty` is not [`GgmlType::supported`].
pub fn random_blocks(ty: GgmlType, blocks: usize, seed: u64) -> Vec<u8> {
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut bytes = vec![0; blocks * ty.block_bytes()];
    random.fill_bytes(&mut bytes);
    // A sign, an exponent from a narrow range or zero, and the mantissa bits that are there already.
    let half_offsets: &[usize] = match ty {
        F32 | BF16 => &[],
        F16 | Q4_0 | Q5_0 | Q8_0 => &[0],
        Q4_K | Q5_K => &[0, 2],
        Q6_K => &[208],
        _ => panic!("{ty:?} is not supported"),
    };
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        let class = random.random_range(0..16);
        if matches!(ty, F32 | BF16) {
            let exponent: u16 = if class == 0 { 0 } else { random.random_range(119..=126) };
            let top = block.len() - 2;
            let bits = u16::from_le_bytes([block[top], block[top + 1]]);
            let bits = if class == 0 { bits & 0x8000 } else { bits & 0x807f | exponent << 7 };
            if class == 0 {
                block.fill(0);
            }
            block[top..].copy_from_slice(&bits.to_le_bytes());
        }
        for &at in half_offsets {
            let bits = u16::from_le_bytes([block[at], block[at + 1]]);
            let bits = match class {
                0 => bits & 0x8000,
                1 | 2 => bits & 0x83ff,
                _ => bits & 0x83ff | random.random_range(7..=10u16) << 10,
            };
            block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
        }
    }
    bytes
}
