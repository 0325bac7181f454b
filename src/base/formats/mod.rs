//! Weight formats: one file per format, with its block, its decoder, and its layout on the device.
//!
//! A format is a [`Format`] in [`FORMATS`] and a reader in `shaders/formats/`, with the same name in lower case.

mod file_type;
mod ggml_type;
mod grids;
mod iq2;
mod k_scales;
pub mod planes;
mod random;

mod bf16;
mod f16;
mod f32;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod nvfp4;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod tq1_0;
mod tq2_0;

use bytemuck::Pod;

pub use file_type::file_type_name;
pub use ggml_type::GgmlType;
pub use random::{random_blocks, random_blocks_like};

pub(super) use iq4_nl::{BlockIq4Nl, LEVELS as IQ4_LEVELS};
pub(super) use iq4_xs::BlockIq4Xs;
pub(super) use k_scales::scale_min;
pub(super) use mxfp4::{BlockMxfp4, half_scale};
pub(super) use q2_k::BlockQ2K;
pub(super) use q3_k::{BlockQ3K, six_bits};
pub(super) use q4_0::BlockQ4_0;
pub(super) use q4_1::BlockQ4_1;
pub(super) use q4_k::BlockQ4K;
pub(super) use q5_0::BlockQ5_0;
pub(super) use q5_1::BlockQ5_1;
pub(super) use q5_k::BlockQ5K;
pub(super) use q6_k::BlockQ6K;
pub(super) use q8_0::BlockQ8_0;

use planes::Writer;

/// Every format with kernels and decoders.
pub static FORMATS: [&Format; 28] = [
    &f32::FORMAT,
    &f16::FORMAT,
    &bf16::FORMAT,
    &q4_0::FORMAT,
    &q4_1::FORMAT,
    &q5_0::FORMAT,
    &q5_1::FORMAT,
    &q8_0::FORMAT,
    &q2_k::FORMAT,
    &q3_k::FORMAT,
    &q4_k::FORMAT,
    &q5_k::FORMAT,
    &q6_k::FORMAT,
    &iq4_nl::FORMAT,
    &iq4_xs::FORMAT,
    &mxfp4::FORMAT,
    &iq2_xxs::FORMAT,
    &iq2_xs::FORMAT,
    &iq2_s::FORMAT,
    &iq3_xxs::FORMAT,
    &iq3_s::FORMAT,
    &iq1_s::FORMAT,
    &iq1_m::FORMAT,
    &tq1_0::FORMAT,
    &tq2_0::FORMAT,
    &nvfp4::FORMAT,
    &q1_0::FORMAT,
    &q2_0::FORMAT,
];

/// A weight format.
pub struct Format {
    /// Id, name and block size.
    pub ty: GgmlType,
    /// File of `shaders/formats/` that reads it, without `.wgsl`.
    reader: &'static str,
    /// File of `shaders/formats/` that reads it as integers in bytes, where there is one.
    byte_reader: Option<&'static str>,
    /// `general.file_type` of a file in which most matrices have this format: `enum llama_ftype` of llama.h.
    pub file_type: u32,
    /// Values of whole blocks, in order. Runs the same f32 operations in the same order as llama.cpp's `dequantize_row_*`
    /// (ggml-quants.c), so that every value has the same bits.
    decode: fn(&[u8], &mut [f32]),
    /// Positions of a block's scales, for random blocks.
    scales: Scales,
    /// The table with which a matrix begins on the device, in whole vec4s: the points of a grid that its quants number.
    table: &'static [u8],
    /// Planes of the layout on the device; none where kernels read the matrix as it is in the file.
    pub planes: &'static [Plane],
    /// Writes the planes of whole blocks.
    write: fn(&mut Writer, &[u8]),
}

/// Positions of the scales of a block, for random blocks.
enum Scales {
    /// No scales: a block is an f32, or its upper bits.
    UpperHalf,
    /// F16 numbers at these bytes.
    Halves(&'static [usize]),
    /// The exponent of a power of two, in this byte.
    Exponent(usize),
    /// This many floats of 8 bits in the first bytes.
    Ue4m3(usize),
    /// An F16 number in the upper four bits of four numbers of 16 bits, from this byte on.
    Quarters(usize),
}

/// A plane of a matrix on the device: see [`planes`].
pub struct Plane {
    /// Bytes per entry.
    pub bytes: usize,
    /// Values of a row per entry: 32 for one entry per slice, 256 for one per block of a K format.
    pub values: usize,
    /// The plane's scales; `None` where it has quants alone.
    pub factors: Option<Factors>,
}

/// Scales in a plane, for matrices of random blocks.
pub enum Factors {
    /// Two f16 values in a word.
    Halves {
        /// Distance of the words with scales.
        every: usize,
        /// Divisors of the standard deviation that the matrix should have: they give both f16 values. Two opposite terms
        /// cancel in the mean, as do `d·scale·q` and `dmin·minimum`.
        divisors: [f64; 2],
    },
    /// A byte `e` per scale, which is `2^(e − 128)`: the power of two next to the standard deviation by this divisor.
    Exponents(f64),
    /// A UE4M3 float per scale: the one next to the standard deviation by this divisor.
    Floats(f64),
}

impl Factors {
    /// The word with scales of a matrix of standard deviation `std`, and the distance of such words.
    pub fn word(&self, std: f64) -> (u32, usize) {
        match *self {
            Factors::Halves { every, divisors } => {
                let [low, high] = divisors.map(|by| u32::from(half::f16::from_f64(std / by).to_bits()));
                (low | high << 16, every)
            }
            Factors::Exponents(by) => {
                let e = 128.0 + (std / by).log2().round();
                (u32::from_le_bytes([e.clamp(0.0, 254.0) as u8; 4]), 1)
            }
            Factors::Floats(by) => {
                let distance = |x: &u8| (f64::from(nvfp4::half_scale(*x)) - std / by).abs();
                let nearest = (0..0x7f).min_by(|a, b| distance(a).total_cmp(&distance(b)));
                (u32::from_le_bytes([nearest.unwrap_or(0); 4]), 1)
            }
        }
    }
}

impl Plane {
    /// A plane of quants or sub-scales.
    const fn bits(bytes: usize, values: usize) -> Plane {
        Plane { bytes, values, factors: None }
    }

    /// A plane with scales.
    const fn factors(bytes: usize, values: usize, every: usize, divisors: [f64; 2]) -> Plane {
        Plane { bytes, values, factors: Some(Factors::Halves { every, divisors }) }
    }

    /// A plane with exponents.
    const fn exponents(bytes: usize, values: usize, divisor: f64) -> Plane {
        Plane { bytes, values, factors: Some(Factors::Exponents(divisor)) }
    }

    /// A plane with floats of 8 bits.
    const fn floats(bytes: usize, values: usize, divisor: f64) -> Plane {
        Plane { bytes, values, factors: Some(Factors::Floats(divisor)) }
    }
}

/// The values of whole blocks, in order.
///
/// # Panics
/// If `ty` is not [`GgmlType::supported`] or `bytes` are not whole blocks. Opening a base checks both.
pub fn dequantize(ty: GgmlType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / ty.block_bytes() * ty.block_len()];
    dequantize_into(ty, bytes, &mut values);
    values
}

/// [`dequantize`] into `out`, whose length is the number of values in `bytes`.
pub fn dequantize_into(ty: GgmlType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len() % ty.block_bytes(), 0, "whole blocks of {ty:?}");
    assert_eq!(bytes.len() / ty.block_bytes() * ty.block_len(), out.len(), "one place for each value");
    let format = ty.format().unwrap_or_else(|| panic!("{ty:?} has no decoder; opening a base refuses it"));
    (format.decode)(bytes, out);
}

/// Decodes block by block.
fn each<B: Pod, const N: usize>(bytes: &[u8], out: &mut [f32], decode: fn(&B, &mut [f32; N])) {
    let (places, _) = out.as_chunks_mut::<N>();
    for (block, place) in bytemuck::cast_slice(bytes).iter().zip(places) {
        decode(block, place);
    }
}

/// The f32 of an f16 in a block.
pub(super) fn f32_of(half: [u8; 2]) -> f32 {
    half::f16::from_le_bytes(half).to_f32()
}
