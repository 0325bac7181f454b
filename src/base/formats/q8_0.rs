//! Q8_0: `d·q`, 32 values, `q` of 8 bits.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::{Format, GgmlType, Plane, Scales, each, f32_of};

/// Q8_0 block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ8_0 {
    pub d: [u8; 2],
    pub qs: [i8; 32],
}
const _: () = assert!(size_of::<BlockQ8_0>() == GgmlType::Q8_0.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q8_0,
    reader: "q8_0",
    byte_reader: None,
    file_type: 7,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[0]),
    table: &[],
    planes: &[Plane::bits(32, 32), Plane::factors(2, 32, 1, [74.0, 74.0])],
    write: |out, bytes| {
        let blocks: &[BlockQ8_0] = cast_slice(bytes);
        out.plane(blocks, |b, [quants]| *quants = b.qs.map(i8::cast_unsigned));
        out.plane(blocks, |b, [d]| *d = b.d);
    },
};

fn decode(block: &BlockQ8_0, y: &mut [f32; 32]) {
    let d = f32_of(block.d);
    for (y, &q) in y.iter_mut().zip(&block.qs) {
        *y = f32::from(q) * d;
    }
}
