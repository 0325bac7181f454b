//! Matrices of random quantized blocks, made on the device: for measuring speed where no file is at hand.

use std::ops::Range;

use crate::base::Tensor;
use crate::base::formats::{GgmlType, Plane};
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

/// Whether [`weight`] makes matrices of `ty`: of the formats of blocks.
pub fn makes(ty: GgmlType) -> bool {
    ty.format().is_some_and(|format| !format.planes.is_empty())
}

/// The blocks of `matrix`, of a format that [`makes`] is for, in tiles of the rows that `tiles` names: values of about the
/// standard deviation `cols^-½`, the same on every device.
pub fn weight(
    gpu: &Gpu,
    matrix: &Tensor<'_>,
    tiles: impl Iterator<Item = Range<usize>>,
) -> Result<Weight, GpuError> {
    let Tensor { name, ty, rows, cols, ref range, .. } = *matrix;
    let planes = ty.format().expect("callers ask `makes`").planes;
    let std = (cols as f64).powf(-0.5);
    let row_bytes_of = |plane: &Plane| cols / plane.values * plane.bytes;
    let mut rec = Recorder::new(gpu);
    let mut made = Vec::new();
    for tile in tiles {
        let row_bytes: usize = planes.iter().map(row_bytes_of).sum();
        let table = ty.table();
        let buffer = gpu.buffer(name, (table.len() + row_bytes * tile.len()) as u64)?;
        gpu.write(&buffer, table);
        let mut first = table.len() / 4;
        for plane in planes {
            let count = (row_bytes_of(plane) * tile.len()).div_ceil(4);
            let (factors, period) = plane.factors.as_ref().map_or((0, 0), |factors| factors.word(std));
            let params = Params {
                first: first as u32,
                count: count as u32,
                // No two planes of a model begin at the same place of its file.
                key: ((range.start / 4) as u32)
                    .wrapping_add((tile.start * row_bytes / 4 + first - table.len() / 4) as u32),
                period: period as u32,
                factors,
            };
            let bound = Binding { index: 1, buffer: &buffer, range: None };
            let groups = count.div_ceil(256).clamp(1, MOST_GROUPS) as u32;
            rec.dispatch(Kernel::new("random/plain", "forward"), &params, &[bound], [groups, 1, 1]);
            first += count;
        }
        made.push(Tile { first_row: tile.start, rows: tile.len(), buffer, range: None });
    }
    rec.submit()?;
    Ok(Weight { ty, rows, cols, tiles: made, bias: None })
}
