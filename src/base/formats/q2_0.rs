//! Q2_0: `d·(q − 1)`, 64 values, `q` of 2 bits.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::{Format, GgmlType, Plane, Scales, each, f32_of};

/// Q2_0 block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BlockQ2_0 {
    d: [u8; 2],
    /// Four neighbours per byte, the first in the lowest bits.
    qs: [[u8; 8]; 2],
}
const _: () = assert!(size_of::<BlockQ2_0>() == GgmlType::Q2_0.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q2_0,
    reader: "q2_0",
    byte_reader: None,
    file_type: 41,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[0]),
    table: &[],
    // Levels of random bits are -1 to 2: rows with d and with −d cancel in the mean.
    planes: &[Plane::bits(8, 32), Plane::factors(2, 64, 1, [1.2247, -1.2247])],
    write: |out, bytes| {
        let blocks: &[BlockQ2_0] = cast_slice(bytes);
        out.plane(blocks, |b, slices: &mut [_; 2]| *slices = b.qs);
        out.plane(blocks, |b, [d]| *d = b.d);
    },
};

fn decode(block: &BlockQ2_0, y: &mut [f32; 64]) {
    let d = f32_of(block.d);
    let q = |i: usize| block.qs[i / 32][i % 32 / 4] >> (i % 4 * 2) & 3;
    *y = std::array::from_fn(|i| d * (f32::from(q(i)) - 1.0));
}
