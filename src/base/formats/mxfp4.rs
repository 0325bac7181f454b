//! MXFP4: `2^(e − 127)` times a float of 4 bits, 32 values (OCP Microscaling Formats, E8M0 scales and E2M1 values).

use bytemuck::{Pod, Zeroable, cast_slice};

use super::planes::{halves, pair_nibbles};
use super::{Format, GgmlType, Plane, Scales, each};

/// Twice the values of E2M1. Must match ggml-common.h `kvalues_mxfp4`. Twin: shaders/formats/e2m1.wgsl.
pub(crate) const LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// MXFP4 block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockMxfp4 {
    pub e: u8,
    pub qs: [u8; 16],
}
const _: () = assert!(size_of::<BlockMxfp4>() == GgmlType::MXFP4.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::MXFP4,
    reader: "mxfp4",
    byte_reader: None,
    file_type: 38,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Exponent(0),
    table: &[],
    planes: &[Plane::bits(16, 32), Plane::exponents(1, 32, 5.85)],
    write: |out, bytes| {
        let blocks: &[BlockMxfp4] = cast_slice(bytes);
        out.plane(blocks, |b, [nibbles]| *nibbles = pair_nibbles(&halves(&b.qs)));
        out.plane(blocks, |b, [e]| *e = [b.e]);
    },
};

/// `2^(e − 128)`: half of the scale, since [`LEVELS`] are doubled. The NaN of E8M0, 255, counts as a number, as in
/// ggml-impl.h `ggml_e8m0_to_fp32_half`.
pub(crate) fn half_scale(e: u8) -> f32 {
    let bits = if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 };
    f32::from_bits(bits)
}

fn decode(block: &BlockMxfp4, y: &mut [f32; 32]) {
    let d = half_scale(block.e);
    *y = halves(&block.qs).map(|q| d * f32::from(LEVELS[usize::from(q)]));
}
