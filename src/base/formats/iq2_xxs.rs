//! IQ2_XXS: `d·(½ + scale)/4·(±level)`, 256 values; eight neighbours are an entry of 256 in a grid and seven signs; scale of 4 bits per
//! 32 values.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::iq2::{slice, slice_signs};
use super::{Format, GgmlType, Plane, Scales, each, f32_of, grids};

/// IQ2_XXS block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BlockIq2Xxs {
    d: [u8; 2],
    /// Four entries of each slice, then a word: four times seven signs, and the scale above them.
    qs: [[u8; 8]; 8],
}
const _: () = assert!(size_of::<BlockIq2Xxs>() == GgmlType::IQ2_XXS.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::IQ2_XXS,
    reader: "iq2_xxs",
    byte_reader: None,
    file_type: 19,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[0]),
    table: &grids::IQ2_XXS,
    planes: &[Plane::bits(8, 32), Plane::factors(2, 256, 1, [53.2, 53.2])],
    write: |out, bytes| {
        let blocks: &[BlockIq2Xxs] = cast_slice(bytes);
        out.plane(blocks, |b, slices: &mut [_; 8]| *slices = b.qs);
        out.plane(blocks, |b, [d]| *d = b.d);
    },
};

fn decode(block: &BlockIq2Xxs, y: &mut [f32; 256]) {
    let d = f32_of(block.d);
    for (y, [a, b, c, e, word @ ..]) in y.as_chunks_mut::<32>().0.iter_mut().zip(&block.qs) {
        let word = u32::from_le_bytes(*word);
        let factor = d * (0.5 + (word >> 28) as f32) * 0.25;
        *y = slice(&grids::IQ2_XXS, [a, b, c, e].map(|i| usize::from(*i)), slice_signs(word), [factor; 2]);
    }
}
