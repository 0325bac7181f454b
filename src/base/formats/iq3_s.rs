//! IQ3_S: `d·(1 + 2·scale)·(±level)`, 256 values; four neighbours are an entry of 512 in a grid and four signs; scale of 4 bits per
//! 32 values.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::iq2::slice_of_fours;
use super::{Format, GgmlType, Plane, Scales, each, f32_of, grids};

/// IQ3_S block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BlockIq3S {
    d: [u8; 2],
    /// The lower eight bits of the entries.
    qs: [[u8; 8]; 8],
    /// The upper bit of a slice's entries.
    qh: [u8; 8],
    signs: [[u8; 4]; 8],
    scales: [u8; 4],
}
const _: () = assert!(size_of::<BlockIq3S>() == GgmlType::IQ3_S.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::IQ3_S,
    reader: "iq3_s",
    byte_reader: None,
    file_type: 26,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[0]),
    table: &grids::IQ3_S,
    planes: &[
        Plane::bits(8, 32),
        Plane::bits(4, 32),
        Plane::bits(8, 256),
        Plane::bits(4, 256),
        Plane::factors(2, 256, 1, [140.3, 140.3]),
    ],
    write: |out, bytes| {
        let blocks: &[BlockIq3S] = cast_slice(bytes);
        out.plane(blocks, |b, slices: &mut [_; 8]| *slices = b.qs);
        out.plane(blocks, |b, slices: &mut [_; 8]| *slices = b.signs);
        out.plane(blocks, |b, [high]| *high = b.qh);
        out.plane(blocks, |b, [scales]| *scales = b.scales);
        out.plane(blocks, |b, [d]| *d = b.d);
    },
};

fn decode(block: &BlockIq3S, y: &mut [f32; 256]) {
    let d = f32_of(block.d);
    for (i, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let high = usize::from(block.qh[i]);
        let entries = std::array::from_fn(|j| usize::from(block.qs[i][j]) | (high >> j & 1) << 8);
        let scale = block.scales[i / 2] >> (i % 2 * 4) & 15;
        let factor = d * f32::from(1 + 2 * scale);
        let signs = u32::from_le_bytes(block.signs[i]);
        *y = slice_of_fours(&grids::IQ3_S, entries, signs, factor, |number| 1 + 2 * number);
    }
}
