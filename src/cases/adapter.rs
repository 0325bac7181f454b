//! An adapter of decoding: products of a few rows that still lack `B·z`.

use super::bench::Bench;
use super::inputs::{beside, part, plus, values, wide};
use crate::gpu::GpuError;
use crate::ops::Up;
use crate::reference::linear;

/// `B` of several matrices, transposed and with gaps between them, and `z` of every row. One of rank 0 adds nothing.
pub struct Adapter {
    rank: usize,
    b: Vec<Vec<f32>>,
    z: Vec<f32>,
    buffer: wgpu::Buffer,
    offsets: Vec<usize>,
}

impl Adapter {
    pub fn new(bench: &Bench, rank: usize, outputs: &[usize], rows: usize) -> Result<Adapter, GpuError> {
        let b: Vec<Vec<f32>> = (50..).zip(outputs).map(|(seed, n)| values(seed, n * rank)).collect();
        let (mut all, mut offsets) = (Vec::new(), Vec::new());
        for b in &b {
            offsets.push(all.len());
            all.extend((0..rank).flat_map(|r| b.chunks(rank).map(move |row| row[r])));
            all.resize((all.len() + 1).next_multiple_of(64), f32::NAN);
        }
        let buffer = bench.gpu.upload("case", &all)?;
        Ok(Adapter { rank, z: values(60, rows * outputs.len() * rank), b, buffer, offsets })
    }

    /// Columns of `z` in a row.
    pub fn width(&self) -> usize {
        self.b.len() * self.rank
    }

    /// The term that products lack whose `z` lies from a column on.
    pub fn up(&self, z_offset: usize) -> Option<Up<'_>> {
        let up = Up { b: &self.buffer, offsets: &self.offsets, rank: self.rank, z_offset };
        (self.rank > 0).then_some(up)
    }

    /// `product + B·z` of matrix `i`.
    pub fn added(&self, product: &[f64], i: usize) -> Vec<f64> {
        if self.rank == 0 {
            return product.to_vec();
        }
        let z = part(&wide(&self.z), self.width(), i * self.rank, self.rank);
        plus(product, 1.0, &linear::forward(&z, &wide(&self.b[i]), self.rank))
    }

    /// Rows of products with `z` beside them.
    pub fn beside(&self, products: &[f32], width: usize) -> Vec<f32> {
        beside(products, width, &self.z, self.width())
    }
}
