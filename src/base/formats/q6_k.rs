//! Q6_K: `d·scale·(q − 32)`, 256 values, `q` of 6 bits; scale of 8 bits per 16 values.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::planes::{nibbles, pairs_of_bits};
use super::{Format, GgmlType, Plane, Scales, each, f32_of};

/// Q6_K block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ6K {
    pub ql: [u8; 128],
    pub qh: [u8; 64],
    pub scales: [i8; 16],
    pub d: [u8; 2],
}
const _: () = assert!(size_of::<BlockQ6K>() == GgmlType::Q6_K.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q6_K,
    reader: "q6_k",
    byte_reader: Some("bytes/q6_k"),
    file_type: 18,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[208]),
    table: &[],
    planes: &[
        Plane::bits(16, 32),
        Plane::bits(16, 256),
        Plane::bits(8, 32),
        Plane::factors(2, 256, 1, [1365.0, 1365.0]),
    ],
    write: |out, bytes| {
        let blocks: &[BlockQ6K] = cast_slice(bytes);
        out.plane(blocks, |b, slices: &mut [_; 8]| {
            let (runs, _) = b.ql.as_chunks::<32>();
            *slices = std::array::from_fn(|slice| nibbles(&runs[slice / 4 * 2 + slice % 2], slice % 4 / 2));
        });
        out.plane(blocks, |b, [scales]| *scales = b.scales.map(i8::cast_unsigned));
        out.plane(blocks, |b, slices: &mut [_; 8]| *slices = pairs_of_bits(&b.qh));
        out.plane(blocks, |b, [d]| *d = b.d);
    },
};

fn decode(block: &BlockQ6K, y: &mut [f32; 256]) {
    let d = f32_of(block.d);
    for (i, y) in y.iter_mut().enumerate() {
        // Each half of 128 holds four runs of 32: low nibbles of two runs, then their high nibbles.
        let (half, run, l) = (i / 128, i % 128 / 32, i % 32);
        let low = block.ql[half * 64 + run % 2 * 32 + l] >> (run / 2 * 4) & 15;
        let high = block.qh[half * 32 + l] >> (run * 2) & 3;
        let q = i32::from(low | high << 4) - 32;
        *y = d * f32::from(block.scales[i / 16]) * q as f32;
    }
}
