//! The term of a frozen adapter that products lack; for decoding.

use super::cached;
use crate::gpu::Recorder;
use crate::ops::{Rows, Up};

/// The [`Up`] of products side by side.
#[derive(Clone)]
pub(in crate::ops) struct Term {
    /// As in [`Up`], and so the next three.
    pub b: wgpu::Buffer,
    pub offsets: Vec<usize>,
    pub rank: usize,
    pub z_offset: usize,
    /// Columns of each product.
    pub widths: Vec<usize>,
}

impl Term {
    /// The adapter, as readers of the products take it.
    pub fn up(&self) -> Up<'_> {
        Up { b: &self.b, offsets: &self.offsets, rank: self.rank, z_offset: self.z_offset }
    }

    /// Adds the term to `rows` rows of the products.
    pub fn add(&self, rec: &mut Recorder, y: &Rows, rows: usize) {
        let mut column = 0;
        for (i, width) in self.widths.iter().enumerate() {
            let z_offset = self.z_offset + i * self.rank;
            cached::forward(rec, y.from(column), &self.up(), i, z_offset, *width, rows);
            column += width;
        }
    }
}
