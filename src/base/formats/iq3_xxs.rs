//! IQ3_XXS: `d·(½ + scale)/2·(±level)`, 256 values; four neighbours are an entry of 256 in a grid, and eight have seven signs; scale of
//! 4 bits per 32 values.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::iq2::{slice_of_fours, slice_signs};
use super::{Format, GgmlType, Plane, Scales, each, f32_of, grids};

/// IQ3_XXS block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BlockIq3Xxs {
    d: [u8; 2],
    qs: [[u8; 8]; 8],
    /// A word of each slice: four times seven signs, and the scale above them.
    signs: [[u8; 4]; 8],
}
const _: () = assert!(size_of::<BlockIq3Xxs>() == GgmlType::IQ3_XXS.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::IQ3_XXS,
    reader: "iq3_xxs",
    byte_reader: None,
    file_type: 23,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[0]),
    table: &grids::IQ3_XXS,
    planes: &[Plane::bits(8, 32), Plane::bits(4, 32), Plane::factors(2, 256, 1, [142.5, 142.5])],
    write: |out, bytes| {
        let blocks: &[BlockIq3Xxs] = cast_slice(bytes);
        out.plane(blocks, |b, slices: &mut [_; 8]| *slices = b.qs);
        out.plane(blocks, |b, slices: &mut [_; 8]| *slices = b.signs);
        out.plane(blocks, |b, [d]| *d = b.d);
    },
};

/// 4, 12, …, 52 and 62. Twin: shaders/formats/iq3_xxs.wgsl.
fn level(number: u16) -> u16 {
    4 + 8 * number + 2 * (number / 7)
}

fn decode(block: &BlockIq3Xxs, y: &mut [f32; 256]) {
    let d = f32_of(block.d);
    for ((y, qs), word) in y.as_chunks_mut::<32>().0.iter_mut().zip(&block.qs).zip(block.signs) {
        let word = u32::from_le_bytes(word);
        let factor = d * (0.5 + (word >> 28) as f32) * 0.5;
        *y = slice_of_fours(&grids::IQ3_XXS, qs.map(usize::from), slice_signs(word), factor, level);
    }
}
