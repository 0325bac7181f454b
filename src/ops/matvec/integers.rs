//! A row of activations as integers of 16 bits, for products of bytes.

use crate::gpu::{Binding, Gpu, GpuError};
use crate::ops::Weight;

/// Columns in one unit.
const COLUMNS: usize = 16;

/// One row `[width]`, in the layout of shaders/common/integers.wgsl.
#[derive(Clone, Debug)]
pub struct Integers {
    buffer: wgpu::Buffer,
}

impl Integers {
    /// Room for a row of `width` columns, a multiple of 32.
    pub fn new(gpu: &Gpu, width: usize) -> Result<Integers, GpuError> {
        assert!(width.is_multiple_of(2 * COLUMNS), "{width} columns are not whole slices of weights");
        Ok(Integers { buffer: gpu.buffer("a row as integers", Integers::bytes_of(width))? })
    }

    /// Bytes of a row of `width` columns: three vec4s for each unit.
    pub fn bytes_of(width: usize) -> u64 {
        (width / COLUMNS * 48) as u64
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.buffer.size()
    }

    pub(crate) fn bind(&self, index: u32) -> Binding<'_> {
        Binding { index, buffer: &self.buffer, range: None }
    }
}

/// Whether the product of one row with `matrices`, which read the same input, is faster in integers: there are readers in bytes of their
/// formats, and more slices than threads that the device runs at once. With fewer, the threads mostly wait for memory.
pub fn wants(gpu: &Gpu, matrices: &[&Weight]) -> bool {
    let cols = matrices.first().map_or(0, |w| w.cols);
    let rows: usize = matrices.iter().map(|w| w.rows).sum();
    let threads = 64 * gpu.kernels().workgroups_to_fill();
    let readers = || matrices.iter().all(|w| w.ty.byte_reader().is_some());
    gpu.kernels().bytes() && cols.is_multiple_of(32) && rows * (cols / 32) > threads && readers()
}
