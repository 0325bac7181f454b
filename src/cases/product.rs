//! Products with weights and an adapter's term: the operands and results of kernels on rows and of those on tiles.

use super::bench::Bench;
use super::inputs::{plus, values, wide};
use crate::base::formats::GgmlType;
use crate::gpu::GpuError;
use crate::ops::Weight;
use crate::reference::linear;

/// Rows of a matrix: an odd number.
pub const ROWS: usize = 71;

/// Columns of a matrix: whole blocks of the format, an odd number of them, more than one step of a sum.
pub fn columns(ty: GgmlType) -> usize {
    match ty.block_len() {
        1 => 100,
        32 => 3 * 32,
        _ => 256,
    }
}

/// The operands of a product with weights and an adapter's term, both ways, and its results.
pub struct Product {
    pub weight: Weight,
    pub x: Vec<f32>,
    pub z: Vec<f32>,
    /// `B` `[n, rank]`.
    pub up: Vec<f32>,
    pub dy: Vec<f32>,
    pub u: Vec<f32>,
    /// `A` `[rank, k]`.
    pub down: Vec<f32>,
    /// `dx` before.
    pub before: Vec<f32>,
    /// `0.5·x·Wᵀ + 0.75·z·Bᵀ`.
    pub y_expected: Vec<f64>,
    /// `before - 1.5·dy·W + u·A`.
    pub dx_expected: Vec<f64>,
}

/// Tokens of a [`Product`]: more than a tile of rows.
pub const TOKENS: usize = 67;

impl Product {
    pub fn new(b: &Bench, ty: GgmlType, [n, k]: [usize; 2], rank: usize) -> Result<Product, GpuError> {
        let (weight, w) = b.weight(ty, n, k)?;
        let (x, z, up) = (values(1, TOKENS * k), values(2, TOKENS * rank), values(3, n * rank));
        let (dy, u, down) = (values(4, TOKENS * n), values(5, TOKENS * rank), values(6, rank * k));
        let before = values(7, TOKENS * k);
        let product: Vec<f64> = linear::forward(&wide(&x), &w, k).iter().map(|y| 0.5 * y).collect();
        let y_expected = plus(&product, 0.75, &linear::forward(&wide(&z), &wide(&up), rank));
        let product = plus(&wide(&before), -1.5, &linear::backward(&wide(&dy), &w, k));
        let dx_expected = plus(&product, 1.0, &linear::backward(&wide(&u), &wide(&down), k));
        Ok(Product { weight, x, z, up, dy, u, down, before, y_expected, dx_expected })
    }
}
