//! Split-K: divides a long sum among several workgroups, for products with too few tiles to fill the device.

use std::ops::Range;

use crate::gpu::{Binding, Gpu, Kernel, PARTIAL_SUMS, Recorder, grid};
use crate::ops::{Rows, Weight};

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
pub const LEAST_STEPS: usize = 4;

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

impl Parts<'_> {
    /// The buffer of the results, and the byte of the first, for kernels of CUDA.
    pub(in crate::ops) fn place(&self) -> (wgpu::Buffer, u64) {
        let start = self.result.range.map_or(0, |range| range.0);
        (self.result.buffer.clone(), start + 16 * u64::from(self.offset4))
    }
}

/// Workgroups of 64×64 results that keep a device as busy as one workgroup of 128×128 results on cooperative matrices.
pub const WIDE: usize = 16;

/// Parts of each sum of a product of `tiles` tiles with which it fills the device, where a workgroup keeps it as busy as `wide` workgroups
/// of 64×64 results do.
pub fn usual_parts(gpu: &Gpu, tiles: u32, steps: usize, wide: usize) -> usize {
    let fill = gpu.kernels().workgroups_to_fill() / wide;
    (fill / tiles.max(1) as usize).min(steps / LEAST_STEPS).max(1)
}

/// Computes a product of `steps` steps of its sum into `target`, in about `wanted` parts, as far as there is room for them. `product` runs
/// the kernel that writes [`Parts::result`].
pub fn split(
    rec: &mut Recorder,
    target: &Target,
    wanted: usize,
    steps: usize,
    product: impl FnOnce(&mut Recorder, &Parts),
) {
    let wanted = wanted.min(room(target.rows as usize, target.cols4 as usize)).max(1);
    let parts = split_evenly(rec, target, evenly(steps, wanted), product);
    sum(rec, target, parts);
}

/// Parts of the sums of some products, which lie in the device's scratch until a consumer adds up all of them.
pub struct Unsummed {
    /// Number of parts.
    pub count: u32,
    most: usize, // parts of a product
}

impl Unsummed {
    /// [`Unsummed::new`] for the result of one product with `weight`; `None` also where the product takes several dispatches, or its rows are
    /// no whole vec4s.
    pub fn of(weight: &Weight, rows: usize) -> Option<Unsummed> {
        let is_whole = weight.tiles.len() == 1 && weight.rows.is_multiple_of(4);
        if is_whole { Unsummed::new(rows, weight.rows, 1) } else { None }
    }

    /// No parts yet; `None` where the scratch has no room for two parts of each of `products` results `[rows, cols]`.
    pub fn new(rows: usize, cols: usize, products: usize) -> Option<Unsummed> {
        let most = room(rows, cols.div_ceil(4)) / products.max(1);
        (most > 1).then_some(Unsummed { count: 0, most })
    }
}

/// The operand of a kernel that adds up sums, at binding `index`: `parts` parts in the device's scratch, or `rows` where there are none. The
/// kernel reads `parts.max(1)` parts.
pub fn operand<'a>(rec: &Recorder<'a>, rows: &'a Rows, parts: u32, index: u32) -> Binding<'a> {
    match parts {
        0 => rows.bind(index),
        _ => in_scratch(rec, index),
    }
}

/// The device's scratch at binding `index`.
pub fn in_scratch<'g>(rec: &Recorder<'g>, index: u32) -> Binding<'g> {
    Binding { index, buffer: rec.gpu().partial_sums(), range: None }
}

/// [`split`] without the sum: the parts are added to `unsummed`, and the target's memory is not written.
pub fn split_unsummed(
    rec: &mut Recorder,
    target: &Target,
    wanted: usize,
    steps: usize,
    unsummed: &mut Unsummed,
    product: impl FnOnce(&mut Recorder, &Parts),
) {
    let (count, steps) = evenly(steps, wanted.min(unsummed.most).max(1));
    let result = Binding { buffer: rec.gpu().partial_sums(), range: None, ..target.y };
    let offset4 = unsummed.count * target.rows * target.cols4;
    product(rec, &Parts { result, count, steps, stride4: target.cols4, offset4, accumulate: 0 });
    unsummed.count += count;
}

/// Parts of results `[rows, 4·cols4]` that the scratch has room for.
pub fn room(rows: usize, cols4: usize) -> usize {
    (PARTIAL_SUMS / 16) as usize / (rows * cols4).max(1)
}

/// The number of equal parts of a sum, at most `wanted`, and the steps in each.
fn evenly(steps: usize, wanted: usize) -> (u32, u32) {
    let part_steps = steps.div_ceil(wanted).max(1);
    (steps.div_ceil(part_steps).max(1) as u32, part_steps as u32)
}

fn split_evenly(
    rec: &mut Recorder,
    target: &Target,
    (count, part_steps): (u32, u32),
    product: impl FnOnce(&mut Recorder, &Parts),
) -> u32 {
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

/// `y = Σ parts` over `rows` rows, of `parts` parts in the device's scratch that no consumer adds up: see [`Unsummed`].
pub fn add_up(rec: &mut Recorder, y: &Rows, rows: usize, parts: u32) {
    reduce(rec, &whole(y, rows, false), 0..parts as usize);
}

/// `y += Σ parts` over `rows` rows, of some of the parts in the device's scratch.
pub fn add(rec: &mut Recorder, y: &Rows, rows: usize, parts: Range<usize>) {
    reduce(rec, &whole(y, rows, true), parts);
}

fn whole(y: &Rows, rows: usize, accumulate: bool) -> Target<'_> {
    let cols4 = (y.stride / 4) as u32;
    Target { y: y.bind(2), rows: rows as u32, cols4, stride4: cols4, offset4: 0, accumulate }
}

/// Adds up `parts` results in the device's scratch, if there are several, and stores or adds the sum to `target`.
fn sum(rec: &mut Recorder, target: &Target, parts: u32) {
    if parts > 1 {
        reduce(rec, target, 0..parts as usize);
    }
}

fn reduce(rec: &mut Recorder, target: &Target, parts: Range<usize>) {
    let count = (target.rows * target.cols4) as usize;
    let params = Params {
        rows: target.rows,
        cols4: target.cols4,
        parts: parts.len() as u32,
        y_stride4: target.stride4,
        y_offset4: target.offset4,
        accumulate: u32::from(target.accumulate),
    };
    let range = (16 * (parts.start * count) as u64, 16 * (parts.len() * count) as u64);
    let scratch = Binding { index: 1, buffer: rec.gpu().partial_sums(), range: Some(range) };
    let y = Binding { index: 2, ..target.y };
    rec.dispatch(
        Kernel::new("partial_sums/plain", "reduce"),
        &params,
        &[scratch, y],
        grid(count.div_ceil(64)),
    );
}
