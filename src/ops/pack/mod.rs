//! f32 rows as f16 operands of cooperative matrices: [`crate::ops::linear::coop16`], [`crate::ops::lora::coop16`].

pub mod grouped;

use crate::gpu::{Binding, Gpu, GpuError, Kernel, Recorder, grid};
use crate::ops::Rows;
use crate::ops::View;

/// Bytes of a matrix.
const MATRIX: u64 = 512;

/// Bytes behind the last matrix: kernels read eight rows of matrices at a time.
const BEHIND: u64 = 8 * MATRIX;

/// Rows that a workgroup packs.
pub(in crate::ops) const ROWS: usize = 4;

/// Twin of `Params` in shaders/pack/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    tiles: u32,
    cols4: u32,
    x_stride4: u32,
    x_offset4: u32,
    packed4: u32,
}

/// Rows as f16 matrices of 16 by 16, `[K/16, T/16, 16, 16]`, and the power of two that undoes each row's scaling.
#[derive(Clone, Debug)]
pub struct Packed {
    buffer: wgpu::Buffer,
    start: u64,            // byte of the first matrix
    tiles: u32,            // matrices from one column of them to the next
    factors: wgpu::Buffer, // [T] from factor_offset on
    factor_offset: usize,
}

impl Packed {
    /// Room for `rows` rows of `cols` columns.
    pub fn new(gpu: &Gpu, label: &str, rows: usize, cols: usize) -> Result<Packed, GpuError> {
        let (buffer, factors) =
            (gpu.buffer(label, packed_bytes(rows, cols))?, gpu.buffer(label, 4 * rows as u64)?);
        Ok(Packed { buffer, start: 0, tiles: tiles(rows), factors, factor_offset: 0 })
    }

    /// A view of the memory for `rows` rows, of more or fewer columns.
    pub fn for_rows(&self, rows: usize) -> Packed {
        Packed { tiles: tiles(rows), ..self.clone() }
    }

    /// The rows from `first`, a multiple of 64, on.
    pub fn below(&self, first: usize) -> Packed {
        Packed {
            start: self.start + tiles(first) as u64 * MATRIX,
            factor_offset: self.factor_offset + first,
            ..self.clone()
        }
    }

    /// The columns from `first`, a multiple of 16, on.
    pub fn columns_from(&self, first: usize) -> Packed {
        Packed { start: self.place(first).1, ..self.clone() }
    }

    /// Matrices from one column of them to the next.
    pub(in crate::ops) fn tiles(&self) -> u32 {
        self.tiles
    }

    /// The buffer of the matrices, and the byte of the first from column `first`, a multiple of 16, on.
    pub(in crate::ops) fn place(&self, first: usize) -> (wgpu::Buffer, u64) {
        (self.buffer.clone(), self.start + (first / 16) as u64 * u64::from(self.tiles) * MATRIX)
    }

    /// The buffer of the factors, and the byte of the first.
    pub(in crate::ops) fn factors_place(&self) -> (wgpu::Buffer, u64) {
        (self.factors.clone(), 4 * self.factor_offset as u64)
    }

    /// A view of the memory as rows of f32.
    pub fn as_rows(&self, width: usize) -> Rows {
        Rows { buffer: self.buffer.clone(), stride: width.next_multiple_of(4), start: self.start }
    }

    /// The matrices at binding `index`.
    pub fn bind(&self, index: u32) -> Binding<'_> {
        let range = (self.start > 0).then(|| (self.start, self.buffer.size() - self.start));
        Binding { index, buffer: &self.buffer, range }
    }

    /// The factors at binding `index`; those of a part of the rows begin at a multiple of 64.
    pub fn bind_factors(&self, index: u32) -> Binding<'_> {
        let start = 4 * self.factor_offset as u64;
        let range = (start > 0).then(|| (start, self.factors.size() - start));
        Binding { index, buffer: &self.factors, range }
    }

    /// Packs `x` `[rows, cols]`, each row scaled by the power of two that brings its largest value into `[½, 1)`.
    pub fn pack(&self, rec: &mut Recorder, x: View, cols: usize, rows: usize) {
        self.dispatch(rec, "pack", self, x, cols, rows);
    }

    /// Packs `x` `[rows, cols]`, scaled as the rows of `other` are.
    pub fn pack_alike(&self, rec: &mut Recorder, x: View, cols: usize, rows: usize, other: &Packed) {
        self.dispatch(rec, "pack_alike", other, x, cols, rows);
    }

    /// `x` `[rows, cols]` again, rounded to f16.
    pub fn unpack(&self, rec: &mut Recorder, x: View, cols: usize, rows: usize) {
        self.dispatch(rec, "unpack", self, x, cols, rows);
    }

    fn dispatch(
        &self,
        rec: &mut Recorder,
        entry: &'static str,
        scaled: &Packed,
        x: View,
        cols: usize,
        rows: usize,
    ) {
        let params = Params {
            rows: rows as u32,
            tiles: self.tiles,
            cols4: cols.div_ceil(4) as u32,
            x_stride4: x.stride4(),
            x_offset4: x.offset4(),
            packed4: (cols.next_multiple_of(64) / 4) as u32,
        };
        let factors = scaled.bind_factors(3);
        let groups = rows.next_multiple_of(16) / ROWS;
        rec.dispatch(
            Kernel::new("pack/plain", entry),
            &params,
            &[x.rows.bind(1), self.bind(2), factors],
            grid(groups),
        );
    }
}

/// Bytes of the matrices of `rows` rows of `cols` columns: columns are padded to what a kernel stages at a time.
pub fn packed_bytes(rows: usize, cols: usize) -> u64 {
    2 * (rows.next_multiple_of(16) * cols.next_multiple_of(64)) as u64 + BEHIND
}

/// Matrices over `rows` rows.
fn tiles(rows: usize) -> u32 {
    rows.div_ceil(16) as u32
}
