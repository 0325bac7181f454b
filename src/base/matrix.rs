//! [`Tensor`] and [`Matrix`]: a frozen matrix without and with its bytes.

use std::ops::Range;

use super::latent::RowOrder;
use super::{GgmlType, formats};

/// A matrix `[rows, cols]`, or some of its rows, without its bytes: [`super::Base::read`] fetches them.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// Name without `.weight`: `blk.3.attn_q`.
    pub name: &'a str,
    /// Format; always one of [`GgmlType::SUPPORTED`].
    pub ty: GgmlType,
    /// Output width.
    pub rows: usize,
    /// Input width: whole blocks, and a multiple of 4.
    pub cols: usize,
    /// Position in the file, in bytes.
    pub range: Range<u64>,
    /// The order of the rows where the file has another than memory ([`super::config::LayerConfig::row_order`]).
    pub order: Option<RowOrder>,
    /// Matrices of the file whose rows lie side by side in a row ([`super::config::Config::side_by_side`]).
    pub side_by_side: usize,
}

impl Tensor<'_> {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.cols / self.ty.block_len() * self.ty.block_bytes()
    }

    /// Bytes of `rows` rows on the device.
    pub fn planes_bytes(&self, rows: usize) -> usize {
        formats::planes::planes_bytes(self.ty, rows * self.row_bytes())
    }

    /// Some of the rows.
    ///
    /// # Panics
    /// If `range` is not within the rows.
    pub fn rows(&self, range: Range<usize>) -> Self {
        assert!(range.end <= self.rows, "rows {range:?} of {}, which has {}", self.name, self.rows);
        let at = |row: usize| self.range.start + row as u64 * self.row_bytes() as u64;
        Tensor { rows: range.len(), range: at(range.start)..at(range.end), ..*self }
    }
}

/// A matrix `[rows, cols]`, rows contiguous, in the file's format: `y = W·x` with `x` `[cols]`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Name without `.weight`: `blk.3.attn_q`.
    pub name: &'a str,
    /// Format; always one of [`GgmlType::SUPPORTED`].
    pub ty: GgmlType,
    /// Output width.
    pub rows: usize,
    /// Input width: whole blocks, and a multiple of 4.
    pub cols: usize,
    /// `rows · row_bytes()` bytes, at any alignment.
    pub data: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.cols / self.ty.block_len() * self.ty.block_bytes()
    }

    /// Some of the rows.
    ///
    /// # Panics
    /// If `range` is not within the rows.
    pub fn rows(&self, range: Range<usize>) -> Matrix<'a> {
        let data = &self.data[range.start * self.row_bytes()..range.end * self.row_bytes()];
        Matrix { rows: range.len(), data, ..*self }
    }

    /// All values, `[rows, cols]`.
    pub fn dequantize(&self) -> Vec<f32> {
        formats::dequantize(self.ty, self.data)
    }
}
