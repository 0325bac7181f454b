//! Matrices of random quantized blocks, made on the device: for measuring speed where no file is at hand.

use std::ops::Range;

use half::f16;

use crate::base::Tensor;
use crate::base::quant::GgmlType;
use crate::gpu::{Binding, Gpu, GpuError, Kernel, Recorder};
use crate::ops::Tile;
use crate::ops::Weight;

/// Workgroups of a plane; each takes as many words as there are for it.
const MOST_GROUPS: usize = 16_384;

/// Twin of `Params` in shaders/random/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    first: u32,
    count: u32,
    key: u32,
    period: u32,
    factors: u32,
}

/// One plane: bytes of it in a row of `cols` columns, and its factors, if it holds any: words from one pair to the next, and
/// the pair.
struct Plane {
    row_bytes: usize,
    factors: Option<(u32, [f64; 2])>,
}

/// The planes of [`crate::base::planes`], with factors that give uniform bits about the standard deviation `std`.
fn planes(ty: GgmlType, cols: usize, std: f64) -> Option<Vec<Plane>> {
    let (slices, blocks) = (cols / 32, cols / 256);
    let bits = |row_bytes: usize| Plane { row_bytes, factors: None };
    let d = |row_bytes: usize, d: f64| Plane { row_bytes, factors: Some((1, [d, d])) };
    // d·scale·q − dmin·minimum with scale and minimum of 0 to 63: the two means cancel.
    let header =
        |d: f64, dmin: f64| Plane { row_bytes: 16 * blocks, factors: Some((4, [std / d, std / dmin])) };
    Some(match ty {
        GgmlType::Q4_0 => vec![bits(16 * slices), d(2 * slices, std / 4.6)],
        GgmlType::Q5_0 => vec![bits(16 * slices), bits(4 * slices), d(2 * slices, std / 9.2)],
        GgmlType::Q8_0 => vec![bits(32 * slices), d(2 * slices, std / 74.0)],
        GgmlType::Q4_K => vec![bits(16 * slices), header(257.0, 34.2)],
        GgmlType::Q5_K => vec![bits(16 * slices), header(524.0, 33.8), bits(4 * slices)],
        GgmlType::Q6_K => {
            vec![bits(16 * slices), bits(16 * blocks), bits(8 * slices), d(2 * blocks, std / 1365.0)]
        }
        _ => return None,
    })
}

/// Whether [`weight`] makes matrices of `ty`: of the formats of blocks.
pub fn makes(ty: GgmlType) -> bool {
    planes(ty, 256, 1.0).is_some()
}

/// The blocks of `matrix`, of a format that [`makes`] is for, in tiles of the rows that `tiles` names: values of about the
/// standard deviation `cols^-½`, the same on every device.
pub fn weight(
    gpu: &Gpu,
    matrix: &Tensor<'_>,
    tiles: impl Iterator<Item = Range<usize>>,
) -> Result<Weight, GpuError> {
    let Tensor { name, ty, rows, cols, ref range } = *matrix;
    let planes = planes(ty, cols, (cols as f64).powf(-0.5)).expect("callers ask `makes`");
    let mut rec = Recorder::new(gpu);
    let mut made = Vec::new();
    for tile in tiles {
        let row_bytes: usize = planes.iter().map(|plane| plane.row_bytes).sum();
        let buffer = gpu.buffer(name, (row_bytes * tile.len()) as u64)?;
        let mut first = 0;
        for plane in &planes {
            let count = (plane.row_bytes * tile.len()).div_ceil(4);
            let (period, factors) = plane.factors.unwrap_or_default();
            let [low, high] = factors.map(|factor| u32::from(f16::from_f64(factor).to_bits()));
            let params = Params {
                first: first as u32,
                count: count as u32,
                // No two planes of a model begin at the same place of its file.
                key: ((range.start / 4) as u32).wrapping_add((tile.start * row_bytes / 4 + first) as u32),
                period,
                factors: high << 16 | low,
            };
            let bound = Binding { index: 1, buffer: &buffer, range: None };
            let groups = count.div_ceil(256).clamp(1, MOST_GROUPS) as u32;
            rec.dispatch(Kernel::new("random/plain", "forward"), &params, &[bound], [groups, 1, 1]);
            first += count;
        }
        made.push(Tile { first_row: tile.start, rows: tile.len(), buffer, range: None });
    }
    rec.submit()?;
    Ok(Weight { ty, rows, cols, tiles: made })
}
