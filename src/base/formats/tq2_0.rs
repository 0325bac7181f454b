//! TQ2_0: `d·(q − 1)`, 256 values, `q` of 2 bits.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::{Format, GgmlType, Plane, Scales, each, f32_of};

/// TQ2_0 block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BlockTq2_0 {
    /// 32 bytes hold four runs of 32 values.
    qs: [[u8; 32]; 2],
    d: [u8; 2],
}
const _: () = assert!(size_of::<BlockTq2_0>() == GgmlType::TQ2_0.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::TQ2_0,
    reader: "tq2_0",
    byte_reader: None,
    file_type: 37,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[64]),
    table: &[],
    // Levels of random bits are -1 to 2: rows with d and with −d cancel in the mean.
    planes: &[Plane::bits(8, 32), Plane::factors(2, 256, 1, [1.2247, -1.2247])],
    write: |out, bytes| {
        let blocks: &[BlockTq2_0] = cast_slice(bytes);
        out.plane(blocks, |b, slices: &mut [[u8; 8]; 8]| {
            *slices = std::array::from_fn(|slice| {
                let q = |i: usize| u64::from(b.qs[slice / 4][i] >> (slice % 4 * 2) & 3) << (2 * i);
                (0..32).map(q).sum::<u64>().to_le_bytes()
            });
        });
        out.plane(blocks, |b, [d]| *d = b.d);
    },
};

fn decode(block: &BlockTq2_0, y: &mut [f32; 256]) {
    let d = f32_of(block.d);
    for (i, y) in y.iter_mut().enumerate() {
        let q = block.qs[i / 128][i % 32] >> (i / 32 % 4 * 2) & 3;
        *y = d * (f32::from(q) - 1.0);
    }
}
