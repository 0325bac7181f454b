//! IQ4_NL: `d·level[q]`, 32 values, `q` of 4 bits, with sixteen levels that lie closer together near zero.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::planes::{halves, pair_nibbles};
use super::{Format, GgmlType, Plane, Scales, each, f32_of};

/// The levels of IQ4_NL and IQ4_XS. Must match ggml-common.h `kvalues_iq4nl`. Twin: shaders/formats/iq4_levels.wgsl.
pub(crate) const LEVELS: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// IQ4_NL block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockIq4Nl {
    pub d: [u8; 2],
    pub qs: [u8; 16],
}
const _: () = assert!(size_of::<BlockIq4Nl>() == GgmlType::IQ4_NL.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::IQ4_NL,
    reader: "iq4_nl",
    byte_reader: None,
    file_type: 25,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Halves(&[0]),
    table: &[],
    planes: &[Plane::bits(16, 32), Plane::factors(2, 32, 1, [67.2, 67.2])],
    write: |out, bytes| {
        let blocks: &[BlockIq4Nl] = cast_slice(bytes);
        out.plane(blocks, |b, [nibbles]| *nibbles = pair_nibbles(&halves(&b.qs)));
        out.plane(blocks, |b, [d]| *d = b.d);
    },
};

fn decode(block: &BlockIq4Nl, y: &mut [f32; 32]) {
    let d = f32_of(block.d);
    *y = halves(&block.qs).map(|q| d * f32::from(LEVELS[usize::from(q)]));
}
