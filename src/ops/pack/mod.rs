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
    factor_count: u32,
    factor_stride: u32,
}

/// Columns that share a factor, where a row has several: those of a block of CUDA's products.
pub const FACTOR_COLUMNS: usize = 256;

/// Rows as f16 matrices of 16 by 16, `[K/16, T/16, 16, 16]`, and the power of two that undoes each row's scaling; or, in blocks, that of every
/// 256 columns of a row, as kernels of CUDA leave products.
#[derive(Clone, Debug)]
pub struct Packed {
    buffer: wgpu::Buffer,
    start: u64,            // byte of the first matrix
    tiles: u32,            // matrices from one column of them to the next
    factors: wgpu::Buffer, // [T] or [blocks, stride] from factor_offset on
    factor_offset: usize,
    blocks: Option<Blocks>,
}

/// Factors of rows in blocks of columns, and behind them room for one of each row: gradients that replace the values have these.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    count: usize,
    /// Floats from the factors of a block to those of the next.
    stride: usize,
}

impl Blocks {
    fn new(rows: usize, cols: usize) -> Blocks {
        Blocks { count: cols.div_ceil(FACTOR_COLUMNS), stride: rows.next_multiple_of(64) }
    }

    /// Bytes of all factors.
    fn bytes(self) -> u64 {
        4 * (self.stride * (self.count + 1)) as u64
    }
}

impl Packed {
    /// Room for `rows` rows of `cols` columns.
    pub fn new(gpu: &Gpu, label: &str, rows: usize, cols: usize) -> Result<Packed, GpuError> {
        Packed::made(gpu, label, [rows, cols], None)
    }

    /// [`Packed::new`] in blocks.
    pub fn in_blocks(gpu: &Gpu, label: &str, rows: usize, cols: usize) -> Result<Packed, GpuError> {
        Packed::made(gpu, label, [rows, cols], Some(Blocks::new(rows, cols)))
    }

    fn made(
        gpu: &Gpu,
        label: &str,
        [rows, cols]: [usize; 2],
        blocks: Option<Blocks>,
    ) -> Result<Packed, GpuError> {
        let buffer = gpu.buffer(label, packed_bytes(rows, cols))?;
        let factors = gpu.buffer(label, blocks.map_or(4 * rows as u64, Blocks::bytes))?;
        Ok(Packed { buffer, start: 0, tiles: tiles(rows), factors, factor_offset: 0, blocks })
    }

    /// The memory of `count` rows of f32 for as many in blocks, without the zeros behind them that operands of products need; `None` where
    /// it is too small.
    pub fn over(rows: &Rows, count: usize) -> Option<Packed> {
        let blocks = Blocks::new(count, rows.stride);
        let matrices = (2 * count.next_multiple_of(16) * rows.stride.next_multiple_of(64)) as u64;
        let start = (rows.start + matrices).next_multiple_of(256);
        let end = rows.start + 4 * (count * rows.stride) as u64;
        (start + blocks.bytes() <= end).then(|| Packed {
            buffer: rows.buffer.clone(),
            start: rows.start,
            tiles: tiles(count),
            factors: rows.buffer.clone(),
            factor_offset: (start / 4) as usize,
            blocks: Some(blocks),
        })
    }

    /// Whether every 256 columns of a row have a factor.
    pub fn is_in_blocks(&self) -> bool {
        self.blocks.is_some()
    }

    /// The tiles with one factor for a row, which lies behind those of blocks.
    pub fn by_row(&self) -> Packed {
        Packed { factor_offset: self.factor_offset + self.own(), blocks: None, ..self.clone() }
    }

    /// The tiles with the factors of `other`, by which their rows are scaled too.
    pub fn scaled_as(&self, other: &Packed) -> Packed {
        let Packed { factors, factor_offset, blocks, .. } = other.clone();
        Packed { factors, factor_offset, blocks, ..self.clone() }
    }

    /// Whether the factors are those of `other`.
    pub(in crate::ops) fn shares_factors(&self, other: &Packed) -> bool {
        self.factors_place() == other.factors_place()
    }

    /// Floats from the first factor to the first of [`Packed::by_row`].
    pub(in crate::ops) fn own(&self) -> usize {
        self.blocks.map_or(0, |blocks| blocks.count * blocks.stride)
    }

    /// The factors of a row of `cols` columns, and floats from one to the next: 0 where there is one.
    pub(crate) fn factors_of_row(&self, cols: usize) -> (u32, u32) {
        self.blocks.map_or((1, 0), |blocks| (cols.div_ceil(FACTOR_COLUMNS) as u32, blocks.stride as u32))
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
    pub(crate) fn tiles(&self) -> u32 {
        self.tiles
    }

    /// The buffer of the matrices, and the byte of the first from column `first`, a multiple of 16, on.
    pub(crate) fn place(&self, first: usize) -> (wgpu::Buffer, u64) {
        (self.buffer.clone(), self.start + (first / 16) as u64 * u64::from(self.tiles) * MATRIX)
    }

    /// The buffer of the factors, and the byte of the first.
    pub(crate) fn factors_place(&self) -> (wgpu::Buffer, u64) {
        (self.factors.clone(), 4 * self.factor_offset as u64)
    }

    /// The buffer of the factors, and the byte of those of the block from column `first`, a multiple of 256, on.
    pub(in crate::ops) fn block_place(&self, first: usize) -> (wgpu::Buffer, u64) {
        let stride = self.blocks.map_or(0, |blocks| blocks.stride);
        (self.factors.clone(), 4 * (self.factor_offset + first / FACTOR_COLUMNS * stride) as u64)
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
        let (factor_count, factor_stride) = self.factors_of_row(cols);
        let params = Params {
            rows: rows as u32,
            tiles: self.tiles,
            cols4: cols.div_ceil(4) as u32,
            x_stride4: x.stride4(),
            x_offset4: x.offset4(),
            packed4: (cols.next_multiple_of(64) / 4) as u32,
            factor_count,
            factor_stride,
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

/// Bytes of the factors of `rows` rows of `cols` columns in blocks.
pub fn block_factor_bytes(rows: usize, cols: usize) -> u64 {
    Blocks::new(rows, cols).bytes()
}

/// Matrices over `rows` rows.
fn tiles(rows: usize) -> u32 {
    rows.div_ceil(16) as u32
}
