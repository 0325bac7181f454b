//! Q5_0: `d·(q − 16)`, 32 values, `q` of 5 bits, the highest apart.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::planes::{halves, pair_bits, pair_nibbles};
use super::{Format, GgmlType, Plane, Scales, each, f32_of};

/// Q5_0 block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ5_0 {
    pub d: [u8; 2],
    pub qh: [u8; 4],
    pub qs: [u8; 16],
}
const _: () = assert!(size_of::<BlockQ5_0>() == GgmlType::Q5_0.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::Q5_0,
    reader: "q5_0",
    byte_reader: None,
    file_type: 8,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[0]),
    table: &[],
    planes: &[Plane::bits(16, 32), Plane::bits(4, 32), Plane::factors(2, 32, 1, [9.2, 9.2])],
    write: |out, bytes| {
        let blocks: &[BlockQ5_0] = cast_slice(bytes);
        out.plane(blocks, |b, [nibbles]| *nibbles = pair_nibbles(&halves(&b.qs)));
        out.plane(blocks, |b, [high]| *high = pair_bits(u32::from_le_bytes(b.qh)));
        out.plane(blocks, |b, [d]| *d = b.d);
    },
};

fn decode(block: &BlockQ5_0, y: &mut [f32; 32]) {
    let (d, qh) = (f32_of(block.d), u32::from_le_bytes(block.qh));
    for (j, &q) in block.qs.iter().enumerate() {
        let high = |bit: usize| (qh >> bit & 1) << 4;
        y[j] = ((u32::from(q & 15) | high(j)) as i32 - 16) as f32 * d;
        y[j + 16] = ((u32::from(q >> 4) | high(j + 16)) as i32 - 16) as f32 * d;
    }
}
