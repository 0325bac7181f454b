//! Q1_0: `d` or `−d`, 128 values.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::{Format, GgmlType, Plane, Scales, each, f32_of};

/// Q1_0 block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BlockQ1_0 {
    d: [u8; 2],
    /// A bit per value, which is set where the value is `d`.
    qs: [[u8; 4]; 4],
}
const _: () = assert!(size_of::<BlockQ1_0>() == GgmlType::Q1_0.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q1_0,
    reader: "q1_0",
    byte_reader: None,
    file_type: 40,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[0]),
    table: &[],
    planes: &[Plane::bits(4, 32), Plane::factors(2, 128, 1, [1.0, 1.0])],
    write: |out, bytes| {
        let blocks: &[BlockQ1_0] = cast_slice(bytes);
        out.plane(blocks, |b, slices: &mut [_; 4]| *slices = b.qs);
        out.plane(blocks, |b, [d]| *d = b.d);
    },
};

fn decode(block: &BlockQ1_0, y: &mut [f32; 128]) {
    let d = f32_of(block.d);
    let set = |i: usize| u32::from_le_bytes(block.qs[i / 32]) >> (i % 32) & 1 == 1;
    *y = std::array::from_fn(|i| if set(i) { d } else { -d });
}
