//! Split-K: divides a long sum among several workgroups, for products with too few tiles to fill the device.

use crate::gpu::{Binding, Kernel, PARTIAL_SUMS, Recorder, grid};

/// Twin of `Params` in shaders/partial_sums/plain.wgsl.
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

/// The destination of a product.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The result, as the product's kernel binds it.
    pub y: Binding<'a>,
    /// Rows of the result.
    pub rows: u32,
    /// Columns of the result / 4.
    pub cols4: u32,
    /// vec4s from one row to the next.
    pub stride4: u32,
    /// vec4s before the first.
    pub offset4: u32,
    /// Whether the product is added to the present contents.
    pub accumulate: bool,
}

/// Minimum number of steps in a part. With fewer, the second pass costs more than the split saves.
const LEAST_STEPS: usize = 4;

/// Split of a product: the destination of its kernel, and the steps of the sum in each part.
pub struct Parts<'a> {
    /// The target itself, or scratch for the results of all parts, at the target's binding number.
    pub result: Binding<'a>,
    /// Number of parts; the third dimension of the dispatch.
    pub count: u32,
    /// Steps of the sum in one part.
    pub steps: u32,
    /// vec4s from one row of the result to the next.
    pub stride4: u32,
    /// vec4s before the first.
    pub offset4: u32,
    /// 1 if the product is added to the present contents, otherwise 0.
    pub accumulate: u32,
}

/// Workgroups of 64×64 results that keep a device as busy as one workgroup of 128×128 results on cooperative matrices.
const WIDE: usize = 16;

/// The number of narrow workgroups of the adapter's thin products that keep a device as busy as one wide workgroup.
const THIN: usize = 4;

/// Computes a product of `tiles` tiles and `steps` steps of its sum into `target`, in as many parts as fill the device.
/// `product` runs the kernel that writes [`Parts::result`].
pub fn split(
    rec: &mut Recorder,
    target: &Target,
    tiles: u32,
    steps: usize,
    product: impl FnOnce(&mut Recorder, &Parts),
) {
    let fill = rec.gpu().kernels().workgroups_to_fill();
    let parts = split_to_fill(rec, target, fill, tiles, steps, product);
    sum(rec, target, parts);
}

/// [`split`] into about `wanted` parts.
pub fn split_into(
    rec: &mut Recorder,
    target: &Target,
    wanted: usize,
    steps: usize,
    product: impl FnOnce(&mut Recorder, &Parts),
) {
    let parts = split_unsummed(rec, target, wanted, steps, product);
    sum(rec, target, parts);
}

/// [`split`] for kernels whose workgroups are wider.
pub fn split_wide(
    rec: &mut Recorder,
    target: &Target,
    tiles: u32,
    steps: usize,
    product: impl FnOnce(&mut Recorder, &Parts),
) {
    let fill = rec.gpu().kernels().workgroups_to_fill() / WIDE;
    let parts = split_to_fill(rec, target, fill, tiles, steps, product);
    sum(rec, target, parts);
}

/// [`split`] for memory-bound kernels, without the final sum. If there are several parts, they remain in the device's scratch.
pub fn split_thin_unsummed(
    rec: &mut Recorder,
    target: &Target,
    tiles: u32,
    steps: usize,
    product: impl FnOnce(&mut Recorder, &Parts),
) -> u32 {
    let fill = rec.gpu().kernels().workgroups_to_fill() / THIN;
    split_to_fill(rec, target, fill, tiles, steps, product)
}

fn split_to_fill(
    rec: &mut Recorder,
    target: &Target,
    fill: usize,
    tiles: u32,
    steps: usize,
    product: impl FnOnce(&mut Recorder, &Parts),
) -> u32 {
    let wanted = (fill / tiles.max(1) as usize).min(steps / LEAST_STEPS);
    split_unsummed(rec, target, wanted, steps, product)
}

fn split_unsummed(
    rec: &mut Recorder,
    target: &Target,
    wanted: usize,
    steps: usize,
    product: impl FnOnce(&mut Recorder, &Parts),
) -> u32 {
    let room = (PARTIAL_SUMS / 16) as usize / ((target.rows * target.cols4) as usize).max(1);
    let wanted = wanted.min(room).max(1);
    let part_steps = steps.div_ceil(wanted).max(1);
    let (count, part_steps) = (steps.div_ceil(part_steps).max(1) as u32, part_steps as u32);
    if count == 1 {
        let Target { y: result, stride4, offset4, accumulate, .. } = *target;
        let accumulate = u32::from(accumulate);
        product(rec, &Parts { result, count, steps: part_steps, stride4, offset4, accumulate });
        return 1;
    }
    let result = Binding { buffer: rec.gpu().partial_sums(), range: None, ..target.y };
    let scratch =
        Parts { result, count, steps: part_steps, stride4: target.cols4, offset4: 0, accumulate: 0 };
    product(rec, &scratch);
    count
}

/// Adds up `parts` results in the device's scratch, if there are several, and stores or adds the sum to `target`.
pub fn sum(rec: &mut Recorder, target: &Target, parts: u32) {
    if parts == 1 {
        return;
    }
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
    rec.dispatch(
        Kernel::new("partial_sums/plain", "reduce"),
        &params,
        &[scratch, y],
        grid(count.div_ceil(64)),
    );
}
