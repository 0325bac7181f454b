//! IQ1_S: `d·(1 + 2·scale)·(level ± ⅛)`, 256 values; eight neighbours are an entry of 2048 in a grid of -1, 0 and 1; scale of 3 bits and
//! sign of the eighth per 32 values.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::{Format, GgmlType, Plane, Scales, each, f32_of, grids};

/// IQ1_S block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BlockIq1S {
    d: [u8; 2],
    /// The lower eight bits of the entries.
    qs: [[u8; 4]; 8],
    /// The upper three bits of a slice's entries, its scale, and the sign of the eighth.
    qh: [[u8; 2]; 8],
}
const _: () = assert!(size_of::<BlockIq1S>() == GgmlType::IQ1_S.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::IQ1_S,
    reader: "iq1_s",
    byte_reader: None,
    file_type: 24,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[0]),
    table: &grids::IQ1,
    planes: &[Plane::bits(4, 32), Plane::bits(2, 32), Plane::factors(2, 256, 1, [7.19, 7.19])],
    write: |out, bytes| {
        let blocks: &[BlockIq1S] = cast_slice(bytes);
        out.plane(blocks, |b, slices: &mut [_; 8]| *slices = b.qs);
        out.plane(blocks, |b, slices: &mut [_; 8]| *slices = b.qh);
        out.plane(blocks, |b, [d]| *d = b.d);
    },
};

/// Eight levels of an entry: -1, 0 or 1.
pub(super) fn levels(entry: usize) -> [f32; 8] {
    let numbers = grids::entry(&grids::IQ1, entry);
    std::array::from_fn(|i| f32::from(numbers >> (2 * i) & 3) - 1.0)
}

fn decode(block: &BlockIq1S, y: &mut [f32; 256]) {
    let d = f32_of(block.d);
    for (i, y) in y.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let high = u16::from_le_bytes(block.qh[i / 4]);
        let entry = usize::from(block.qs[i / 4][i % 4]) | usize::from(high >> (3 * (i % 4)) & 7) << 8;
        let factor = d * f32::from(2 * (high >> 12 & 7) + 1);
        let delta = if high & 0x8000 == 0 { 0.125 } else { -0.125 };
        *y = levels(entry).map(|level| factor * (level + delta));
    }
}
