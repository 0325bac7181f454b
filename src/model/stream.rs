//! Frozen matrices, read from the base and uploaded in tiles: host memory holds no more than one tile at a time.

use std::ops::Range;

use crate::base::{Base, Tensor};
use crate::gpu::{Gpu, GpuError};
use crate::ops::linear::grouped::{ExpertWeight, expert_tiles};
use crate::ops::{Tile, Weight, random, row_tiles};

/// Uploads a matrix of `base`.
pub(super) async fn weight(gpu: &Gpu, base: &Base, matrix: &Tensor<'_>) -> Result<Weight, GpuError> {
    tiles(gpu, base, matrix, row_tiles(gpu, matrix.ty, matrix.rows, matrix.row_bytes())).await
}

/// Uploads the matrices of all `experts` of `base`.
pub(super) async fn experts(
    gpu: &Gpu,
    base: &Base,
    matrix: &Tensor<'_>,
    experts: usize,
) -> Result<ExpertWeight, GpuError> {
    let rows = matrix.rows / experts;
    let places = expert_tiles(gpu, matrix.ty, [experts, rows], matrix.row_bytes());
    Ok(ExpertWeight { weight: tiles(gpu, base, matrix, places).await?, rows })
}

async fn tiles(
    gpu: &Gpu,
    base: &Base,
    matrix: &Tensor<'_>,
    places: impl Iterator<Item = Range<usize>>,
) -> Result<Weight, GpuError> {
    let Tensor { name, ty, rows, cols, .. } = *matrix;
    if base.is_random() && random::makes(ty) {
        return random::weight(gpu, matrix, places);
    }
    let mut tiles = Vec::new();
    for tile in places {
        let bytes = base.read_in_order(matrix, tile.clone()).await.map_err(GpuError::read)?;
        tiles.push(Tile::upload(gpu, name, ty, tile, &bytes)?);
    }
    Ok(Weight { ty, rows, cols, tiles, bias: None })
}
