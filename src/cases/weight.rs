//! Random matrices of weights.

use super::inputs::wide;
use crate::base::formats::{GgmlType, dequantize, planes, random_blocks};
use crate::gpu::{Gpu, GpuError};
use crate::ops::{Tile, Weight};

/// Rows of a piece of a matrix.
const PIECE: usize = 64;

/// A random matrix on the device, and its values from the decoder of src/base.
///
/// With `tiled` it lies in pieces of 64 rows in one buffer, each from a multiple of 256 bytes on and followed by NaN.
///
/// # Errors
/// The device's error.
pub fn random(
    gpu: &Gpu,
    ty: GgmlType,
    rows: usize,
    cols: usize,
    tiled: bool,
) -> Result<(Weight, Vec<f64>), GpuError> {
    let bytes = random_blocks(ty, rows * cols / ty.block_len(), (rows + cols) as u64);
    let truth = wide(&dequantize(ty, &bytes));
    if !tiled {
        return Ok((Weight::upload(gpu, "case", ty, rows, cols, &bytes)?, truth));
    }
    let (mut all, mut parts) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(PIECE * cols / ty.block_len() * ty.block_bytes()) {
        let packed = planes::to_planes(ty, piece.len() * ty.block_len() / ty.block_bytes() / cols, piece);
        let start = all.len();
        all.extend_from_slice(&packed);
        all.resize((all.len() + 256).next_multiple_of(256), 0xff);
        parts.push((start as u64, (all.len() - start) as u64));
    }
    let buffer = gpu.upload("case", &all)?;
    let tiles = parts.into_iter().enumerate().map(|(i, range)| {
        let first_row = PIECE * i;
        Tile { first_row, rows: PIECE.min(rows - first_row), buffer: buffer.clone(), range: Some(range) }
    });
    Ok((Weight { ty, rows, cols, tiles: tiles.collect(), bias: None }, truth))
}
