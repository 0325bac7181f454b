//! TQ1_0: `d·(q − 1)`, 256 values, `q` a digit of base 3; a byte holds five digits, the last four bytes four.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::{Format, GgmlType, Plane, Scales, each, f32_of};

/// TQ1_0 block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BlockTq1_0 {
    /// Digit `n` of byte `l` is value `32n + l`.
    first: [u8; 32],
    /// Digit `n` of byte `l` is value `160 + 16n + l`.
    second: [u8; 16],
    /// Digit `n` of byte `l` is value `240 + 4n + l`.
    third: [u8; 4],
    d: [u8; 2],
}
const _: () = assert!(size_of::<BlockTq1_0>() == GgmlType::TQ1_0.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::TQ1_0,
    reader: "tq1_0",
    byte_reader: None,
    file_type: 36,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[52]),
    table: &[],
    planes: &[
        Plane::bits(32, 256),
        Plane::bits(16, 256),
        Plane::bits(4, 256),
        Plane::factors(2, 256, 1, [0.817, 0.817]),
    ],
    write: |out, bytes| {
        let blocks: &[BlockTq1_0] = cast_slice(bytes);
        out.plane(blocks, |b, [first]| *first = b.first);
        out.plane(blocks, |b, [second]| *second = b.second);
        out.plane(blocks, |b, [third]| *third = b.third);
        out.plane(blocks, |b, [d]| *d = b.d);
    },
};

/// Digit `n` of a byte, which is a fraction of 256: multiplied by a power of three, it has the digit above the point of `256/3`.
fn digit(byte: u8, n: usize) -> u8 {
    let shifted = byte.wrapping_mul([1, 3, 9, 27, 81][n]);
    ((u16::from(shifted) * 3) >> 8) as u8
}

fn decode(block: &BlockTq1_0, y: &mut [f32; 256]) {
    let d = f32_of(block.d);
    for (i, y) in y.iter_mut().enumerate() {
        let q = match i {
            0..160 => digit(block.first[i % 32], i / 32),
            160..240 => digit(block.second[i % 16], (i - 160) / 16),
            _ => digit(block.third[i % 4], (i - 240) / 4),
        };
        *y = d * (f32::from(q) - 1.0);
    }
}
