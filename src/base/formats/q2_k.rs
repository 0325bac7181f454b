//! Q2_K: `d·scale·q − dmin·minimum`, 256 values, `q` of 2 bits; scale and minimum of 4 bits per 16 values.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::planes::pairs_of_bits;
use super::{Format, GgmlType, Plane, Scales, each, f32_of};

/// Q2_K block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ2K {
    /// The scale in the low nibble, the minimum in the high one.
    pub scales: [u8; 16],
    pub qs: [u8; 64],
    pub d: [u8; 2],
    pub dmin: [u8; 2],
}
const _: () = assert!(size_of::<BlockQ2K>() == GgmlType::Q2_K.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q2_K,
    reader: "q2_k",
    byte_reader: None,
    file_type: 10,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[80, 82]),
    table: &[],
    // The mean of scale·q is 11.25, which dmin·minimum of mean 7.5 cancels.
    planes: &[Plane::bits(16, 256), Plane::bits(8, 32), Plane::factors(4, 256, 1, [13.87, 13.87 / 1.5])],
    write: |out, bytes| {
        let blocks: &[BlockQ2K] = cast_slice(bytes);
        out.plane(blocks, |b, [scales]| *scales = b.scales);
        out.plane(blocks, |b, slices: &mut [_; 8]| *slices = pairs_of_bits(&b.qs));
        out.plane(blocks, |b, [factors]| *factors = [b.d[0], b.d[1], b.dmin[0], b.dmin[1]]);
    },
};

fn decode(block: &BlockQ2K, y: &mut [f32; 256]) {
    let (d, dmin) = (f32_of(block.d), f32_of(block.dmin));
    for (i, y) in y.iter_mut().enumerate() {
        // Each half of 128 holds four runs of 32, which lie in the same bytes.
        let (half, run, l) = (i / 128, i % 128 / 32, i % 32);
        let q = block.qs[half * 32 + l] >> (run * 2) & 3;
        let scales = block.scales[i / 16];
        let (scale, min) = (d * f32::from(scales & 15), dmin * f32::from(scales >> 4));
        *y = scale * f32::from(q) - min;
    }
}
