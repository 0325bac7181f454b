//! IQ2_S: `d·(½ + scale)/4·(±level)`, 256 values; eight neighbours are an entry of 1024 in a grid and eight signs; scale of 4 bits per
//! 16 values.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::iq2::slice;
use super::{Format, GgmlType, Plane, Scales, each, f32_of, grids};

/// IQ2_S block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BlockIq2S {
    d: [u8; 2],
    /// The lower eight bits of the entries.
    qs: [[u8; 4]; 8],
    signs: [[u8; 4]; 8],
    /// The upper two bits of a slice's entries.
    qh: [u8; 8],
    scales: [u8; 8],
}
const _: () = assert!(size_of::<BlockIq2S>() == GgmlType::IQ2_S.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::IQ2_S,
    reader: "iq2_s",
    byte_reader: None,
    file_type: 28,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[0]),
    table: &grids::IQ2_S,
    planes: &[Plane::bits(8, 32), Plane::bits(16, 256), Plane::factors(2, 256, 1, [56.4, 56.4])],
    write: |out, bytes| {
        let blocks: &[BlockIq2S] = cast_slice(bytes);
        out.plane(blocks, |b, slices: &mut [[u8; 8]; 8]| {
            *slices = std::array::from_fn(|i| join(b.qs[i], b.signs[i]));
        });
        out.plane(blocks, |b, [header]: &mut [[u8; 16]; 1]| *header = join(b.qh, b.scales));
        out.plane(blocks, |b, [d]| *d = b.d);
    },
};

/// `first`, then `second`.
fn join<const N: usize, const M: usize>(first: [u8; N], second: [u8; N]) -> [u8; M] {
    std::array::from_fn(|i| if i < N { first[i] } else { second[i - N] })
}

fn decode(block: &BlockIq2S, y: &mut [f32; 256]) {
    let d = f32_of(block.d);
    for (i, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let high = usize::from(block.qh[i]);
        let entries = std::array::from_fn(|j| usize::from(block.qs[i][j]) | (high >> (2 * j) & 3) << 8);
        let scales = block.scales[i];
        let factors = [scales & 15, scales >> 4].map(|scale| d * (0.5 + f32::from(scale)) * 0.25);
        *y = slice(&grids::IQ2_S, entries, u32::from_le_bytes(block.signs[i]), factors);
    }
}
