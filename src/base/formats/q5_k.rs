//! Q5_K: `d·scale·q − dmin·minimum`, 256 values, `q` of 5 bits; scale and minimum of 6 bits per 32 values.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::k_scales::{header_of, scale_min};
use super::planes::{high_bits, pairs_of_nibbles};
use super::{Format, GgmlType, Plane, Scales, each, f32_of};

/// Q5_K block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ5K {
    pub d: [u8; 2],
    pub dmin: [u8; 2],
    pub scales: [u8; 12],
    pub qh: [u8; 32],
    pub qs: [u8; 128],
}
const _: () = assert!(size_of::<BlockQ5K>() == GgmlType::Q5_K.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q5_K,
    reader: "q5_k",
    byte_reader: Some("bytes/q5_k"),
    file_type: 17,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[0, 2]),
    table: &[],
    planes: &[Plane::bits(16, 32), Plane::factors(16, 256, 4, [524.0, 33.8]), Plane::bits(4, 32)],
    write: |out, bytes| {
        let blocks: &[BlockQ5K] = cast_slice(bytes);
        out.plane(blocks, |b, slices: &mut [_; 8]| *slices = pairs_of_nibbles(&b.qs));
        out.plane(blocks, |b, [header]| *header = header_of(b.d, b.dmin, b.scales));
        out.plane(blocks, |b, slices: &mut [_; 8]| *slices = high_bits(&b.qh));
    },
};

fn decode(block: &BlockQ5K, y: &mut [f32; 256]) {
    let (d, dmin) = (f32_of(block.d), f32_of(block.dmin));
    for j in 0..8 {
        let (scale, min) = scale_min(j, &block.scales);
        let (scale, min) = (d * scale, dmin * min);
        for l in 0..32 {
            let q = block.qs[j / 2 * 32 + l] >> (j % 2 * 4) & 15 | (block.qh[l] >> j & 1) << 4;
            y[j * 32 + l] = scale * f32::from(q) - min;
        }
    }
}
