//! f32 rows as f16 operands of cooperative matrices: [`super::coop_linear`], [`super::coop_lora`].

use super::{Rows, View};
use crate::gpu::{Binding, Gpu, GpuError, Kernel, Recorder};

/// Bytes behind the last matrix: kernels read eight rows of matrices at a time.
const BEHIND: u64 = 8 * 512;

/// Rows that a workgroup packs.
pub(super) const ROWS: usize = 4;

/// Twin of `Params` in shaders/pack.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    tiles: u32,
    cols4: u32,
    x_stride4: u32,
    x_offset4: u32,
    packed4: u32,
    factor_offset: u32,
}

/// Rows as f16 matrices of 16 by 16, `[K/16, T/16, 16, 16]`, and the power of two that undoes each row's scaling.
#[derive(Clone, Debug)]
pub struct Packed {
    buffer: wgpu::Buffer,
    factors: wgpu::Buffer, // [T] from factor_offset on
    factor_offset: usize,
}

impl Packed {
    /// Room for `rows` rows of `cols` columns.
    pub fn new(gpu: &Gpu, label: &str, rows: usize, cols: usize) -> Result<Packed, GpuError> {
        let factors = gpu.buffer(label, 4 * rows as u64)?;
        Packed::with_factors(gpu, label, rows, cols, factors, 0)
    }

    /// The same with its factors in a buffer of several, from `factor_offset` on.
    pub fn with_factors(
        gpu: &Gpu,
        label: &str,
        rows: usize,
        cols: usize,
        factors: wgpu::Buffer,
        factor_offset: usize,
    ) -> Result<Packed, GpuError> {
        Ok(Packed { buffer: gpu.buffer(label, packed_bytes(rows, cols))?, factors, factor_offset })
    }

    /// The same memory as rows of f32.
    pub fn as_rows(&self, width: usize) -> Rows {
        Rows { buffer: self.buffer.clone(), stride: width.next_multiple_of(4), packed: None }
    }

    /// The matrices at binding `index`.
    pub fn bind(&self, index: u32) -> Binding<'_> {
        Binding { index, buffer: &self.buffer, range: None }
    }

    /// The factors at binding `index`.
    pub fn bind_factors(&self, index: u32) -> Binding<'_> {
        Binding { index, buffer: &self.factors, range: None }
    }

    /// Packs `x` `[rows, cols]`, each row scaled by the power of two that brings its largest value into `[½, 1)`.
    pub fn pack(&self, rec: &mut Recorder, x: View, cols: usize, rows: usize) {
        self.dispatch(rec, "pack", self, x, cols, rows);
    }

    /// Packs `x` `[rows, cols]`, scaled as the rows of `other` are.
    pub fn pack_alike(&self, rec: &mut Recorder, x: View, cols: usize, rows: usize, other: &Packed) {
        self.dispatch(rec, "pack_alike", other, x, cols, rows);
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
            tiles: tiles(rows),
            cols4: cols.div_ceil(4) as u32,
            x_stride4: x.stride4(),
            x_offset4: x.offset4(),
            packed4: (cols.next_multiple_of(64) / 4) as u32,
            factor_offset: scaled.factor_offset as u32,
        };
        let factors = Binding { index: 3, buffer: &scaled.factors, range: None };
        let groups = rows.next_multiple_of(16).div_ceil(ROWS) as u32;
        rec.dispatch(
            Kernel::new("pack", entry),
            &params,
            &[x.rows.bind(1), self.bind(2), factors],
            [groups, 1, 1],
        );
    }
}

/// Bytes of the matrices of `rows` rows of `cols` columns: columns are padded to what a kernel stages at a time.
pub fn packed_bytes(rows: usize, cols: usize) -> u64 {
    2 * (rows.next_multiple_of(16) * cols.next_multiple_of(64)) as u64 + BEHIND
}

/// Matrices over `rows` rows.
pub(super) fn tiles(rows: usize) -> u32 {
    rows.div_ceil(16) as u32
}
