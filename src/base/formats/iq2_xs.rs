//! IQ2_XS: `d·(½ + scale)/4·(±level)`, 256 values; eight neighbours are an entry of 512 in a grid and seven signs; scale of 4 bits per
//! 16 values.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::iq2::{eight_signs, slice};
use super::{Format, GgmlType, Plane, Scales, each, f32_of, grids};

/// IQ2_XS block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BlockIq2Xs {
    d: [u8; 2],
    /// Four numbers of each slice: an entry in nine bits, seven signs above it.
    qs: [[u8; 8]; 8],
    scales: [u8; 8],
}
const _: () = assert!(size_of::<BlockIq2Xs>() == GgmlType::IQ2_XS.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::IQ2_XS,
    reader: "iq2_xs",
    byte_reader: None,
    file_type: 20,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[0]),
    table: &grids::IQ2_XS,
    planes: &[Plane::bits(8, 32), Plane::bits(8, 256), Plane::factors(2, 256, 1, [55.9, 55.9])],
    write: |out, bytes| {
        let blocks: &[BlockIq2Xs] = cast_slice(bytes);
        out.plane(blocks, |b, slices: &mut [_; 8]| *slices = b.qs);
        out.plane(blocks, |b, [scales]| *scales = b.scales);
        out.plane(blocks, |b, [d]| *d = b.d);
    },
};

fn decode(block: &BlockIq2Xs, y: &mut [f32; 256]) {
    let d = f32_of(block.d);
    for ((y, qs), scales) in y.as_chunks_mut::<32>().0.iter_mut().zip(&block.qs).zip(block.scales) {
        let eights: [u32; 4] =
            std::array::from_fn(|i| u32::from(u16::from_le_bytes([qs[2 * i], qs[2 * i + 1]])));
        let signs = (0..4).fold(0, |signs, i| signs | eight_signs(eights[i] >> 9) << (8 * i));
        let factors = [scales & 15, scales >> 4].map(|scale| d * (0.5 + f32::from(scale)) * 0.25);
        *y = slice(&grids::IQ2_XS, eights.map(|q| (q & 511) as usize), signs, factors);
    }
}
