//! IQ1_M: `d·(1 + 2·scale)·(level ± ⅛)`, 256 values; eight neighbours are an entry of 2048 in a grid of -1, 0 and 1, and a sign of the
//! eighth; scale of 3 bits per 16 values.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::iq1_s::levels;
use super::{Format, GgmlType, Plane, Scales, each, f32_of, grids};

/// IQ1_M block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BlockIq1M {
    /// The lower eight bits of the entries.
    qs: [[u8; 4]; 8],
    /// For each entry its upper three bits, and the sign of the eighth.
    qh: [[u8; 2]; 8],
    /// Four scales in twelve bits; above them four bits of d.
    scales: [[u8; 2]; 4],
}
const _: () = assert!(size_of::<BlockIq1M>() == GgmlType::IQ1_M.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::IQ1_M,
    reader: "iq1_m",
    byte_reader: None,
    file_type: 31,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Quarters(48),
    table: &grids::IQ1,
    // Beside d lie some of the scales. Zero makes them 1.
    planes: &[Plane::bits(4, 32), Plane::bits(2, 32), Plane::factors(8, 256, 2, [5.92, f64::INFINITY])],
    write: |out, bytes| {
        let blocks: &[BlockIq1M] = cast_slice(bytes);
        out.plane(blocks, |b, slices: &mut [_; 8]| *slices = b.qs);
        out.plane(blocks, |b, slices: &mut [_; 8]| *slices = b.qh);
        out.plane(blocks, |b, [header]| *header = (u64::from(b.d()) | b.scales() << 16).to_le_bytes());
    },
};

impl BlockIq1M {
    /// The bits of `d`.
    fn d(&self) -> u16 {
        let four = |(i, word): (usize, [u8; 2])| (u16::from_le_bytes(word) >> 12) << (4 * i);
        self.scales.into_iter().enumerate().map(four).sum()
    }

    /// The sixteen scales, the first in the lowest three bits.
    fn scales(&self) -> u64 {
        let twelve = |(i, word): (usize, [u8; 2])| u64::from(u16::from_le_bytes(word) & 0xfff) << (12 * i);
        self.scales.into_iter().enumerate().map(twelve).sum()
    }
}

fn decode(block: &BlockIq1M, y: &mut [f32; 256]) {
    let d = f32_of(block.d().to_le_bytes());
    for (i, y) in y.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let high = u16::from_le_bytes(block.qh[i / 4]) >> (4 * (i % 4));
        let entry = usize::from(block.qs[i / 4][i % 4]) | usize::from(high & 7) << 8;
        let scale = (block.scales() >> (3 * (i / 2)) & 7) as u8;
        let factor = d * f32::from(2 * scale + 1);
        let delta = if high & 8 == 0 { 0.125 } else { -0.125 };
        *y = levels(entry).map(|level| factor * (level + delta));
    }
}
