//! Q4_1: `d·q + m`, 32 values, `q` of 4 bits.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::planes::{halves, pair_nibbles};
use super::{Format, GgmlType, Plane, Scales, each, f32_of};

/// Q4_1 block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ4_1 {
    pub d: [u8; 2],
    pub m: [u8; 2],
    pub qs: [u8; 16],
}
const _: () = assert!(size_of::<BlockQ4_1>() == GgmlType::Q4_1.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q4_1,
    reader: "q4_1",
    byte_reader: None,
    file_type: 3,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[0, 2]),
    table: &[],
    // The mean of q is 7.5, which m cancels.
    planes: &[Plane::bits(16, 32), Plane::factors(4, 32, 1, [4.6, -4.6 / 7.5])],
    write: |out, bytes| {
        let blocks: &[BlockQ4_1] = cast_slice(bytes);
        out.plane(blocks, |b, [nibbles]| *nibbles = pair_nibbles(&halves(&b.qs)));
        out.plane(blocks, |b, [factors]| *factors = [b.d[0], b.d[1], b.m[0], b.m[1]]);
    },
};

fn decode(block: &BlockQ4_1, y: &mut [f32; 32]) {
    let (d, m) = (f32_of(block.d), f32_of(block.m));
    for (j, &q) in block.qs.iter().enumerate() {
        y[j] = f32::from(q & 15) * d + m;
        y[j + 16] = f32::from(q >> 4) * d + m;
    }
}
