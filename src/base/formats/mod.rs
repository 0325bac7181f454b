//! Weight formats: one file per format, with its block, its decoder, and its layout on the device.
//!
//! A format is a [`Format`] in [`FORMATS`] and a reader in `shaders/formats/`, with the same name in lower case.

mod ggml_type;
mod k_scales;
pub mod planes;
mod random;

mod bf16;
mod f16;
mod f32;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;

use bytemuck::Pod;

pub use ggml_type::GgmlType;
pub use random::random_blocks;

pub(super) use k_scales::scale_min;
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
pub static FORMATS: [&Format; 11] = [
    &f32::FORMAT,
    &f16::FORMAT,
    &bf16::FORMAT,
    &q4_0::FORMAT,
    &q4_1::FORMAT,
    &q5_0::FORMAT,
    &q5_1::FORMAT,
    &q8_0::FORMAT,
    &q4_k::FORMAT,
    &q5_k::FORMAT,
    &q6_k::FORMAT,
];

/// A weight format.
pub struct Format {
    /// Id, name and block size.
    pub ty: GgmlType,
    /// File of `shaders/formats/` that reads it, without `.wgsl`.
    pub reader: &'static str,
    /// `general.file_type` of a file in which most matrices have this format: `enum llama_ftype` of llama.h.
    pub file_type: u32,
    /// Values of whole blocks, in order. Runs the same f32 operations in the same order as llama.cpp's `dequantize_row_*`
    /// (ggml-quants.c), so that every value has the same bits.
    decode: fn(&[u8], &mut [f32]),
    /// Positions of f16 scales in a block.
    half_offsets: &'static [usize],
    /// Planes of the layout on the device; none where kernels read the matrix as it is in the file.
    pub planes: &'static [Plane],
    /// Writes the planes of whole blocks.
    write: fn(&mut Writer, &[u8]),
}

impl Format {
    /// Whether values are the upper bits of an f32, or all of them.
    fn is_upper_half_of_f32(&self) -> bool {
        self.planes.is_empty() && self.half_offsets.is_empty()
    }
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
pub struct Factors {
    /// Distance of the words with scales. A word has two f16 values.
    pub every: usize,
    /// Divisors of the standard deviation that the matrix should have: they give both f16 values. Two opposite terms cancel
    /// in the mean, as do `d·scale·q` and `dmin·minimum`.
    pub divisors: [f64; 2],
}

impl Plane {
    /// A plane of quants or sub-scales.
    const fn bits(bytes: usize, values: usize) -> Plane {
        Plane { bytes, values, factors: None }
    }

    /// A plane with scales.
    const fn factors(bytes: usize, values: usize, every: usize, divisors: [f64; 2]) -> Plane {
        Plane { bytes, values, factors: Some(Factors { every, divisors }) }
    }
}

/// The values of whole blocks, in order.
///
/// # Panics
/// Where `ty` is not [`GgmlType::supported`] or `bytes` are not whole blocks. Opening a base checks both.
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
