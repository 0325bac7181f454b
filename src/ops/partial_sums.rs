//! Splitting a long sum over several workgroups, for products with too few tiles to fill the device.

use crate::gpu::{Binding, Gpu, Kernel, PARTIAL_SUMS, Recorder, grid};

/// Twin of `Params` in shaders/partial_sums.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    cols4: u32,
    parts: u32,
    y_stride4: u32,
    y_offset4: u32,
    accumulate: u32,
}

/// Where a product's result goes.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The result, at binding 2 of the reduction.
    pub y: Binding<'a>,
    /// Rows of the result.
    pub rows: u32,
    /// Columns of the result / 4.
    pub cols4: u32,
    /// vec4s from one row to the next.
    pub stride4: u32,
    /// vec4s before the first.
    pub offset4: u32,
    /// Whether the result keeps what it holds.
    pub accumulate: bool,
}

/// Least steps of the sum in a part: below, the second pass costs more than it saves.
const LEAST_STEPS: usize = 4;

/// In how many parts to compute a sum of `steps` steps over `tiles` tiles of a result of `values4` vec4s.
pub fn parts(gpu: &Gpu, tiles: usize, steps: usize, values4: usize) -> u32 {
    let room = (PARTIAL_SUMS / 16) as usize / values4.max(1);
    let wanted = gpu.workgroups_to_fill() / tiles.max(1);
    wanted.min(steps / LEAST_STEPS).min(room).max(1) as u32
}

/// Adds up `parts` results in the device's scratch and stores or adds them to `target`.
pub fn reduce(rec: &mut Recorder, target: &Target, parts: u32) {
    let params = Params {
        rows: target.rows,
        cols4: target.cols4,
        parts,
        y_stride4: target.stride4,
        y_offset4: target.offset4,
        accumulate: u32::from(target.accumulate),
    };
    let scratch = Binding { index: 1, buffer: rec.gpu().partial_sums(), range: None };
    let count = (target.rows * target.cols4) as usize;
    let y = Binding { index: 2, ..target.y };
    rec.dispatch(Kernel::new("partial_sums", "reduce"), &params, &[scratch, y], grid(count.div_ceil(64)));
}
