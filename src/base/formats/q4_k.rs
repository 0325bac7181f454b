//! Q4_K: `d·scale·q − dmin·minimum`, 256 values, `q` of 4 bits; scale and minimum of 6 bits per 32 values.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::k_scales::{header_of, scale_min};
use super::planes::pairs_of_nibbles;
use super::{Format, GgmlType, Plane, Scales, each, f32_of};

/// Q4_K block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ4K {
    pub d: [u8; 2],
    pub dmin: [u8; 2],
    pub scales: [u8; 12],
    pub qs: [u8; 128],
}
const _: () = assert!(size_of::<BlockQ4K>() == GgmlType::Q4_K.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q4_K,
    reader: "q4_k",
    byte_reader: Some("bytes/q4_k"),
    file_type: 15,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[0, 2]),
    table: &[],
    planes: &[Plane::bits(16, 32), Plane::factors(16, 256, 4, [257.0, 34.2])],
    write: |out, bytes| {
        let blocks: &[BlockQ4K] = cast_slice(bytes);
        out.plane(blocks, |b, slices: &mut [_; 8]| *slices = pairs_of_nibbles(&b.qs));
        out.plane(blocks, |b, [header]| *header = header_of(b.d, b.dmin, b.scales));
    },
};

fn decode(block: &BlockQ4K, y: &mut [f32; 256]) {
    let (d, dmin) = (f32_of(block.d), f32_of(block.dmin));
    for j in 0..8 {
        let (scale, min) = scale_min(j, &block.scales);
        let (scale, min) = (d * scale, dmin * min);
        for l in 0..32 {
            let q = block.qs[j / 2 * 32 + l] >> (j % 2 * 4) & 15;
            y[j * 32 + l] = scale * f32::from(q) - min;
        }
    }
}
