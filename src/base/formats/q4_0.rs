//! Q4_0: `d·(q − 8)`, 32 values, `q` of 4 bits.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::planes::{halves, pair_nibbles};
use super::{Format, GgmlType, Plane, Scales, each, f32_of};

/// Q4_0 block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ4_0 {
    pub d: [u8; 2],
    pub qs: [u8; 16],
}
const _: () = assert!(size_of::<BlockQ4_0>() == GgmlType::Q4_0.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q4_0,
    reader: "q4_0",
    byte_reader: Some("bytes/q4_0"),
    file_type: 2,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[0]),
    table: &[],
    planes: &[Plane::bits(16, 32), Plane::factors(2, 32, 1, [4.6, 4.6])],
    write: |out, bytes| {
        let blocks: &[BlockQ4_0] = cast_slice(bytes);
        out.plane(blocks, |b, [nibbles]| *nibbles = pair_nibbles(&halves(&b.qs)));
        out.plane(blocks, |b, [d]| *d = b.d);
    },
};

fn decode(block: &BlockQ4_0, y: &mut [f32; 32]) {
    let d = f32_of(block.d);
    for (j, &q) in block.qs.iter().enumerate() {
        y[j] = (i32::from(q & 15) - 8) as f32 * d;
        y[j + 16] = (i32::from(q >> 4) - 8) as f32 * d;
    }
}
