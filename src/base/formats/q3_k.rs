//! Q3_K: `d·(scale − 32)·(q − 4)`, 256 values, `q` of 3 bits, the highest apart; scale of 6 bits per 16 values.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::planes::{high_bits, pairs_of_bits};
use super::{Format, GgmlType, Plane, Scales, each, f32_of};

/// Q3_K block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ3K {
    pub hmask: [u8; 32],
    pub qs: [u8; 64],
    pub scales: [u8; 12],
    pub d: [u8; 2],
}
const _: () = assert!(size_of::<BlockQ3K>() == GgmlType::Q3_K.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q3_K,
    reader: "q3_k",
    byte_reader: None,
    file_type: 12,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[108]),
    table: &[],
    planes: &[
        Plane::bits(8, 32),
        Plane::bits(8, 256),
        Plane::bits(4, 32),
        Plane::bits(4, 256),
        Plane::factors(2, 256, 1, [43.3, 43.3]),
    ],
    write: |out, bytes| {
        let blocks: &[BlockQ3K] = cast_slice(bytes);
        out.plane(blocks, |b, slices: &mut [_; 8]| *slices = pairs_of_bits(&b.qs));
        out.plane(blocks, |b, [low]: &mut [[u8; 8]; 1]| {
            let scales = six_bits(&b.scales);
            *low = std::array::from_fn(|slice| scales[2 * slice] & 15 | (scales[2 * slice + 1] & 15) << 4);
        });
        out.plane(blocks, |b, slices: &mut [_; 8]| *slices = high_bits(&b.hmask));
        out.plane(blocks, |b, [high]: &mut [[u8; 4]; 1]| {
            let scales = six_bits(&b.scales);
            let two =
                |i: usize| scales[4 * i..][..4].iter().rev().fold(0, |bits, scale| bits << 2 | scale >> 4);
            *high = std::array::from_fn(two);
        });
        out.plane(blocks, |b, [d]| *d = b.d);
    },
};

/// The sixteen scales, from 0 to 63. Must match ggml-quants.c `dequantize_row_q3_K`.
pub(crate) fn six_bits(packed: &[u8; 12]) -> [u8; 16] {
    std::array::from_fn(|j| packed[j % 8] >> (j / 8 * 4) & 15 | (packed[8 + j % 4] >> (j / 4 * 2) & 3) << 4)
}

fn decode(block: &BlockQ3K, y: &mut [f32; 256]) {
    let d = f32_of(block.d);
    let scales = six_bits(&block.scales);
    for (i, y) in y.iter_mut().enumerate() {
        // Each half of 128 holds four runs of 32, which lie in the same bytes.
        let (half, run, l) = (i / 128, i % 128 / 32, i % 32);
        let q = block.qs[half * 32 + l] >> (run * 2) & 3 | (block.hmask[l] >> (i / 32) & 1) << 2;
        *y = d * (f32::from(scales[i / 16]) - 32.0) * (f32::from(q) - 4.0);
    }
}
