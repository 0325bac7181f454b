//! NVFP4: a float of 8 bits per 16 values (UE4M3) times a float of 4 bits (E2M1), 64 values.

use bytemuck::{Pod, Zeroable, cast_slice};

use super::mxfp4::LEVELS;
use super::planes::pair_nibbles;
use super::{Format, GgmlType, Plane, Scales, each};

/// NVFP4 block. Source: ggml-common.h.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BlockNvfp4 {
    /// The scales of each half of both slices.
    d: [[u8; 2]; 2],
    /// Eight bytes per sixteen values: the first eight in the low nibbles, the others in the high ones.
    qs: [[[u8; 8]; 2]; 2],
}
const _: () = assert!(size_of::<BlockNvfp4>() == GgmlType::NVFP4.block_bytes());

pub(super) static FORMAT: Format = Format {
    ty: GgmlType::NVFP4,
    reader: "nvfp4",
    byte_reader: None,
    file_type: 39,
    decode: |bytes, out| each(bytes, out, decode),
    scales: Scales::Ue4m3(4),
    table: &[],
    planes: &[Plane::bits(16, 32), Plane::floats(2, 32, 5.85)],
    write: |out, bytes| {
        let blocks: &[BlockNvfp4] = cast_slice(bytes);
        out.plane(blocks, |b, slices: &mut [_; 2]| *slices = b.qs.map(|qs| pair_nibbles(&numbers(&qs))));
        out.plane(blocks, |b, slices: &mut [_; 2]| *slices = b.d);
    },
};

/// The levels' numbers of a slice, in order.
fn numbers(qs: &[[u8; 8]; 2]) -> [u8; 32] {
    std::array::from_fn(|i| qs[i / 16][i % 8] >> (i % 16 / 8 * 4) & 15)
}

/// Half of a scale, since [`LEVELS`] are doubled. The NaN of UE4M3 is 0, as in ggml-impl.h `ggml_ue4m3_to_fp32`.
pub(super) fn half_scale(x: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(x >> 3 & 15), f32::from(x & 7));
    match (x, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa * 0.5f32.powi(10),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 8),
    }
}

fn decode(block: &BlockNvfp4, y: &mut [f32; 64]) {
    for (slice, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let q = numbers(&block.qs[slice]);
        let d = block.d[slice].map(half_scale);
        *y = std::array::from_fn(|i| d[i / 16] * f32::from(LEVELS[usize::from(q[i])]));
    }
}
