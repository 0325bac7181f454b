//! Matrices as panels: f16 in the order in which shaders/linear/cuda reads them.

use super::EDGE;
use crate::gpu::{Binding, Gpu, GpuError, Kernel, Recorder};
use crate::ops::{Param, Weight};

/// Most bytes of panels: those of larger matrices are made and used in parts.
const MOST: u64 = 128 << 20;

/// Most bytes of panels of experts, whose products are shorter.
const MOST_OF_EXPERTS: u64 = 512 << 20;

/// Twin of `Params` in shaders/linear/panels.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    weight_rows: u32,
    weight_cols: u32,
    first: u32,
    rows: u32,
    stride: u32,
    first_column: u32,
    steps: u32,
    size: u32,
    scale: f32,
    low_first: u32,
    low_rows: u32,
    low_stride: u32,
    low_cols4: u32,
    low_steps: u32,
    low_at: u32,
    low_size: u32,
    low_scale: f32,
}

/// Bytes of panels for passes of at most `tokens` tokens: of the two largest matrices of a model of `width`, of its widest mixer and
/// feed-forward block, whose gradients one kernel sums, or of the part of one that is made at a time, and of adapters of rank `rank`; and
/// `head` bytes of those of the output projection. `None` where no product runs in CUDA.
pub fn panel_bytes(
    gpu: &Gpu,
    tokens: usize,
    [width, mixer, ffn]: [usize; 3],
    rank: usize,
    head: u64,
) -> Option<u64> {
    let is_worth = gpu.kernels().cuda().is_some_and(|least| tokens >= least.tokens);
    is_worth.then(|| (2 * product_bytes(mixer.max(ffn), width, rank)).max(head))
}

/// Bytes of the panels of an output projection, [both ways](Panels::both_ways), or of as much of it as takes about `room` bytes: with
/// more parts there are more launches, and each chunk of tokens makes the panels again.
pub fn head_bytes(vocab: usize, width: usize, room: u64) -> u64 {
    let whole = matrix_bytes(vocab, width);
    if 2 * whole <= room { 2 * whole } else { whole.min(room.max(MOST)) }
}

/// Bytes of the panels of a matrix `[weight_rows, weight_cols]`, or of a part of it, and of those of its adapter of rank `rank`.
pub fn product_bytes(weight_rows: usize, weight_cols: usize, rank: usize) -> u64 {
    matrix_bytes(weight_rows, weight_cols).min(MOST) + bytes(weight_rows.max(weight_cols), rank)
}

/// Bytes of the panels of the matrices `[weight_rows, weight_cols]` of `experts` experts and of their adapters of rank `rank`, or of as
/// many of them as take about `room` bytes: with fewer there are more launches.
pub fn expert_bytes(experts: usize, weight_rows: usize, weight_cols: usize, rank: usize, room: u64) -> u64 {
    let one = product_bytes(weight_rows, weight_cols, rank);
    (experts as u64 * one).min(room.clamp(MOST, MOST_OF_EXPERTS)).max(one)
}

/// Bytes of the panels of a matrix, forward or backward.
fn matrix_bytes(weight_rows: usize, weight_cols: usize) -> u64 {
    bytes(weight_rows, weight_cols).max(bytes(weight_cols, weight_rows))
}

/// Bytes of the panels of `rows` rows of `steps` steps.
pub(super) fn bytes(rows: usize, steps: usize) -> u64 {
    2 * (rows.next_multiple_of(EDGE) * steps.next_multiple_of(EDGE)) as u64
}

/// Memory for panels.
#[derive(Clone, Debug)]
pub struct Panels {
    buffer: wgpu::Buffer,
    start: u64,
    size: u64,
    made: bool,
}

impl Panels {
    /// Room for `bytes`, at least those of [`product_bytes`].
    pub fn new(gpu: &Gpu, bytes: u64) -> Result<Panels, GpuError> {
        Ok(Panels { buffer: gpu.buffer("panels", bytes)?, start: 0, size: bytes, made: false })
    }

    /// Room for the panels of all of `w`, without adapter, forward and behind them backward; `None` where there is less.
    pub fn both_ways(&self, w: &Weight) -> Option<[Panels; 2]> {
        let size = matrix_bytes(w.rows, w.cols);
        let fits = w.tiles.len() == 1 && 2 * size <= self.size;
        let of = |start| Panels { start, size, ..self.clone() };
        fits.then(|| [of(self.start), of(self.start + size)])
    }

    /// This memory where a product has made the panels of a whole matrix: the next ones multiply by it, too, and make none.
    pub fn as_made(&self) -> Panels {
        Panels { made: true, ..self.clone() }
    }

    /// The buffer that they lie in.
    pub fn buffer(&self) -> &wgpu::Buffer {
        &self.buffer
    }

    /// Bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The place of byte `at`.
    pub(super) fn place(&self, at: u64) -> (wgpu::Buffer, u64) {
        (self.buffer.clone(), self.start + at)
    }
}

/// The product that panels are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `x·Wᵀ`: their rows are those of W.
    Forward,
    /// `dy·W`: their rows are the columns of W.
    Backward,
}

/// Matrices of one shape in one tile of a weight.
#[derive(Clone, Copy)]
pub(super) struct Stack<'a> {
    pub weight: &'a Weight,
    pub tile: usize,
    /// First row in the tile, and rows of each matrix.
    pub first: usize,
    pub rows: usize,
    /// Columns of each matrix, from a multiple of 32 on.
    pub first_column: usize,
    pub columns: usize,
    /// Matrices, and rows from one to the next.
    pub count: usize,
    pub stride: usize,
}

/// The adapters of a [`Stack`]: B, or A, of each matrix.
#[derive(Clone, Copy)]
pub(super) struct LowStack<'a> {
    pub matrix: &'a Param,
    /// First row.
    pub first: usize,
    /// Rows from one adapter to the next.
    pub stride: usize,
    pub rank: usize,
    pub scale: f32,
}

/// Makes the panels of `scale` times each matrix from byte `at` on, and behind all of them those of their adapters, unless they
/// [are made](Panels::as_made). Returns the byte where those of adapters begin.
pub(super) fn make(
    rec: &mut Recorder,
    (panels, at): (&Panels, u64),
    way: Way,
    stack: &Stack,
    scale: f32,
    low: Option<&LowStack>,
) -> u64 {
    let (w, tile) = (stack.weight, &stack.weight.tiles[stack.tile]);
    let rank = low.map_or(0, |low| low.rank);
    // B has the rows of W, A its columns.
    let (entry, [rows, summed], low_rows) = match way {
        Way::Forward => ("forward", [stack.rows, stack.columns], stack.rows),
        Way::Backward => ("backward", [stack.columns, stack.rows], rank),
    };
    let (steps, low_steps) = (summed.div_ceil(EDGE), rank.div_ceil(EDGE));
    let (size, low_size) = (bytes(rows, summed), bytes(rows, rank));
    let low_at = size * stack.count as u64;
    if panels.made {
        return at + low_at;
    }
    let params = Params {
        weight_rows: tile.rows as u32,
        weight_cols: w.cols as u32,
        first: stack.first as u32,
        rows: stack.rows as u32,
        stride: stack.stride as u32,
        first_column: stack.first_column as u32,
        steps: steps as u32,
        size: (size / 16) as u32,
        scale,
        low_first: low.map_or(0, |low| low.first as u32),
        low_rows: low_rows as u32,
        low_stride: low.map_or(0, |low| low.stride as u32),
        low_cols4: low.map_or(0, |low| low.matrix.cols as u32 / 4),
        low_steps: low_steps as u32,
        low_at: (low_at / 16) as u32,
        low_size: (low_size / 16) as u32,
        low_scale: low.map_or(0.0, |low| low.scale),
    };
    let length = low_at + low_size * stack.count as u64;
    let binding = Binding { index: 2, buffer: &panels.buffer, range: Some((panels.start + at, length)) };
    let matrix = low.map_or(rec.unused(3), |low| low.matrix.bind(3));
    let groups = [rows.div_ceil(EDGE) as u32, (steps + low_steps) as u32, stack.count as u32];
    let kernel = Kernel::new("linear/panels", entry).with_format(w.ty.reader());
    rec.dispatch(kernel, &params, &[tile.bind(1), binding, matrix], groups);
    at + low_at
}
