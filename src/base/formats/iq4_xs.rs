//! IQ4_XS: `d·(scale − 32)·level[q]`, 256 values, `q` of 4 bits with the levels of IQ4_NL; scale of 6 bits per 32 values.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::iq4_nl::LEVELS;
use super::planes::{halves, pair_nibbles};
use super::{Format, GgmlType, Plane, Scales, each, f32_of};

/// IQ4_XS block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockIq4Xs {
    pub d: [u8; 2],
    /// The upper two bits of each scale.
    pub scales_h: [u8; 2],
    /// The lower four bits of each scale.
    pub scales_l: [u8; 4],
    pub qs: [[u8; 16]; 8],
}
const _: () = assert!(size_of::<BlockIq4Xs>() == GgmlType::IQ4_XS.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::IQ4_XS,
    reader: "iq4_xs",
    byte_reader: None,
    file_type: 30,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[0]),
    table: &[],
    // Beside d lie the upper bits of the scales. Zero makes them -32 to -17.
    planes: &[Plane::bits(16, 32), Plane::factors(8, 256, 2, [1675.0, f64::INFINITY])],
    write: |out, bytes| {
        let blocks: &[BlockIq4Xs] = cast_slice(bytes);
        out.plane(blocks, |b, slices: &mut [_; 8]| *slices = b.qs.map(|qs| pair_nibbles(&halves(&qs))));
        out.plane(blocks, |b, [header]| {
            let [low, high] =
                [b.scales_l, [b.d[0], b.d[1], b.scales_h[0], b.scales_h[1]]].map(u32::from_le_bytes);
            *header = (u64::from(high) | u64::from(low) << 32).to_le_bytes();
        });
    },
};

fn decode(block: &BlockIq4Xs, y: &mut [f32; 256]) {
    let d = f32_of(block.d);
    let high = u16::from_le_bytes(block.scales_h);
    for (slice, (y, qs)) in y.as_chunks_mut::<32>().0.iter_mut().zip(&block.qs).enumerate() {
        let low = u16::from(block.scales_l[slice / 2] >> (slice % 2 * 4) & 15);
        let scale = d * (f32::from(low | (high >> (2 * slice) & 3) << 4) - 32.0);
        *y = halves(qs).map(|q| scale * f32::from(LEVELS[usize::from(q)]));
    }
}
