//! Long products of [`crate::ops::linear`] by a kernel of CUDA, shaders/linear/cuda.cu: f16 operands, each row scaled, and f32 sums.
//!
//! It reads activations as tiles, as [`super::coop16`] does, and weights as fragments: f16 in the order in which its threads hold them,
//! which a kernel of the device makes of one quantized matrix at a time, in scratch that the next one overwrites.

use bytemuck::Zeroable;

use super::coop16::LowRank;
use crate::gpu::{Binding, Entry, Gpu, GpuError, Kernel, Launch, Recorder};
use crate::ops::op;
use crate::ops::pack::Packed;
use crate::ops::partial_sums::{self, Target};
use crate::ops::{View, Weight};

/// Columns that a block computes at a time.
const COLUMNS: usize = 128;
/// Tokens that a block computes at a time.
const TOKENS: usize = 256;
/// Steps of the sum in a fragment.
const STEPS: usize = 16;
/// Most bytes of fragments: those of larger matrices are made and used in parts.
const MOST: u64 = 128 << 20;

static TEXT: &[u8] = concat!(include_str!("../../../shaders/linear/cuda.ptx"), "\0").as_bytes();

/// Twin of the numbers of `Arguments` in shaders/linear/cuda.cu.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Numbers {
    rows: u32,
    columns: u32,
    stride: u32,
    steps: u32,
    low_steps: u32,
    tiles: u32,
    z_tiles: u32,
    accumulate: u32,
    part_steps: u32,
    parts: u32,
}

/// Twin of `Params` in shaders/linear/fragments.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    weight_rows: u32,
    weight_cols: u32,
    first: u32,
    steps: u32,
    scale: f32,
    low_rows: u32,
    low_cols4: u32,
    low_first: u32,
    low_steps: u32,
    low_at: u32,
    low_scale: f32,
}

/// Fewest steps of a part of a sum, in fragments: with fewer, to add up the parts costs more than the split saves.
const LEAST_STEPS: usize = 48;

/// Whether a product of `rows` tokens with `columns` results each, sums of `summed` terms, is worth the fragments of its matrix.
pub fn is_worth(rec: &Recorder, [rows, columns, summed]: [usize; 3]) -> bool {
    let work = rows as u64 * columns as u64 * summed as u64;
    let busy = blocks(rows, columns) * parts_of(rec, [rows, columns, summed]);
    rec.gpu()
        .kernels()
        .cuda()
        .is_some_and(|least| rows >= least.tokens && work >= least.multiplications && busy >= least.blocks)
}

/// The parts of a product's sums that keep the GPU busy.
fn parts_of(rec: &Recorder, [rows, columns, summed]: [usize; 3]) -> usize {
    let wanted = rec.gpu().multiprocessors() / blocks(rows, columns).max(1);
    wanted.min(summed / STEPS / LEAST_STEPS).max(1)
}

/// Blocks of a product of `rows` tokens.
fn blocks(rows: usize, columns: usize) -> usize {
    columns.div_ceil(COLUMNS) * rows.div_ceil(TOKENS)
}

/// Bytes of fragments for passes of at most `tokens` tokens: of the largest matrix of a model of `width`, of its widest mixer and
/// feed-forward block, or of the part of it that is made at a time, and of an adapter of rank `rank`; and of all of `head` rows of the
/// output projection. `None` where no product runs in CUDA.
pub fn fragment_bytes(
    gpu: &Gpu,
    tokens: usize,
    [width, mixer, ffn]: [usize; 3],
    rank: usize,
    head: usize,
) -> Option<u64> {
    let is_worth = gpu.kernels().cuda().is_some_and(|least| tokens >= least.tokens);
    is_worth.then(|| product_bytes(mixer.max(ffn), width, rank).max(head_bytes(head, width)))
}

/// Bytes of the fragments of an output projection.
pub fn head_bytes(vocab: usize, width: usize) -> u64 {
    bytes(vocab, width).max(bytes(width, vocab))
}

/// Bytes of the fragments of a matrix `[weight_rows, weight_cols]`, or of a part of it, and of those of its adapter of rank `rank`.
pub fn product_bytes(weight_rows: usize, weight_cols: usize, rank: usize) -> u64 {
    let whole = bytes(weight_rows, weight_cols).max(bytes(weight_cols, weight_rows));
    whole.min(MOST) + bytes(weight_rows.max(weight_cols), rank)
}

/// Bytes of the fragments of `rows` rows of `steps` steps.
fn bytes(rows: usize, steps: usize) -> u64 {
    2 * (rows.next_multiple_of(COLUMNS) * steps.next_multiple_of(STEPS)) as u64
}

/// Memory for fragments.
#[derive(Clone, Debug)]
pub struct Fragments(wgpu::Buffer);

impl Fragments {
    /// Room for `bytes`, at least those of [`product_bytes`].
    pub fn new(gpu: &Gpu, bytes: u64) -> Result<Fragments, GpuError> {
        Ok(Fragments(gpu.buffer("fragments", bytes)?))
    }

    /// The memory.
    pub fn buffer(&self) -> &wgpu::Buffer {
        &self.0
    }
}

/// `y = scale·x·Wᵀ + lora.scale·z·Bᵀ`, as [`super::coop16::forward`].
pub fn forward(
    rec: &mut Recorder,
    fragments: &Fragments,
    y: View,
    x: &Packed,
    w: &Weight,
    scale: f32,
    lora: Option<&LowRank>,
    rows: usize,
) {
    for part in parts(fragments, w, lora.map_or(0, |l| l.rank)) {
        let low_at = make(rec, fragments, Way::Forward, &part, scale, lora);
        let low = lora.map(|lora| Low { lora, at: low_at });
        let product = Product {
            name: "linear/cuda.forward",
            x,
            first: 0,
            summed: w.cols,
            y: View { rows: y.rows, offset: y.offset + part.row() },
            columns: part.rows.next_multiple_of(4),
            accumulate: false,
        };
        product.launch(rec, fragments, low, rows);
    }
}

/// `dx = scale·dy·W + u·A`, added to `dx` where `accumulate`, as [`super::coop16::backward`].
pub fn backward(
    rec: &mut Recorder,
    fragments: &Fragments,
    dx: View,
    dy: &Packed,
    w: &Weight,
    scale: f32,
    lora: Option<&LowRank>,
    rows: usize,
    accumulate: bool,
) {
    for (i, part) in parts(fragments, w, lora.map_or(0, |l| l.rank)).into_iter().enumerate() {
        let lora = lora.filter(|_| i == 0);
        let low_at = make(rec, fragments, Way::Backward, &part, scale, lora);
        let low = lora.map(|lora| Low { lora, at: low_at });
        let product = Product {
            name: "linear/cuda.backward",
            x: dy,
            first: part.row(),
            summed: part.rows,
            y: dx,
            columns: w.cols,
            accumulate: accumulate || i > 0,
        };
        product.launch(rec, fragments, low, rows);
    }
}

/// Neighbouring rows of a tile of a matrix.
struct Part<'a> {
    weight: &'a Weight,
    tile: usize,
    /// First row in the tile.
    first: usize,
    rows: usize,
}

impl Part<'_> {
    /// First row in the matrix.
    fn row(&self) -> usize {
        self.weight.tiles[self.tile].first_row + self.first
    }
}

/// The parts of `w` that have room among the fragments, beside those of its adapter of rank `rank`.
fn parts<'a>(fragments: &Fragments, w: &'a Weight, rank: usize) -> Vec<Part<'a>> {
    let room = fragments.0.size() - bytes(w.rows.max(w.cols), rank);
    let most = (room / bytes(COLUMNS, w.cols.next_multiple_of(COLUMNS))) as usize * COLUMNS;
    assert!(most > 0, "the plan makes room for some rows");
    let of_tile = |(tile, rows): (usize, usize)| {
        let part = move |first| Part { weight: w, tile, first, rows: most.min(rows - first) };
        (0..rows).step_by(most).map(part)
    };
    w.tiles.iter().map(|tile| tile.rows).enumerate().flat_map(of_tile).collect()
}

/// The product that fragments are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `x·Wᵀ`: their rows are those of W.
    Forward,
    /// `dy·W`: their rows are the columns of W.
    Backward,
}

/// Makes the fragments of `scale·w`, a matrix in one tile, and behind them those of its adapter's matrix. Returns the byte where these begin.
pub fn prepare(
    rec: &mut Recorder,
    fragments: &Fragments,
    way: Way,
    w: &Weight,
    scale: f32,
    lora: Option<&LowRank>,
) -> u64 {
    make(rec, fragments, way, &Part { weight: w, tile: 0, first: 0, rows: w.rows }, scale, lora)
}

/// Makes the fragments of `part`, and behind them those of the adapter's matrix. Returns the byte where these begin.
fn make(
    rec: &mut Recorder,
    fragments: &Fragments,
    way: Way,
    part: &Part,
    scale: f32,
    lora: Option<&LowRank>,
) -> u64 {
    let (w, tile) = (part.weight, &part.weight.tiles[part.tile]);
    // B has the rows of W, A its columns.
    let (entry, [rows, summed], low) = match way {
        Way::Forward => ("forward", [part.rows, w.cols], lora.map(|l| (l.matrix.as_weight(), part.row()))),
        Way::Backward => {
            let a = |l: &LowRank| (l.matrix.part(l.first_row, l.rank).as_weight(), 0);
            ("backward", [w.cols, part.rows], lora.map(a))
        }
    };
    let rank = lora.map_or(0, |l| l.rank);
    let (steps, low_steps) = (summed.div_ceil(STEPS), rank / STEPS);
    let low_at = bytes(rows, summed);
    let (low_matrix, low_first) = low.as_ref().map_or((None, 0), |(matrix, first)| (Some(matrix), *first));
    let params = Params {
        weight_rows: tile.rows as u32,
        weight_cols: w.cols as u32,
        first: part.first as u32,
        steps: steps as u32,
        scale,
        low_rows: low_matrix.map_or(0, |low| low.rows as u32),
        low_cols4: low_matrix.map_or(0, |low| low.cols as u32 / 4),
        low_first: low_first as u32,
        low_steps: low_steps as u32,
        low_at: (low_at / 16) as u32,
        low_scale: lora.map_or(0.0, |l| l.scale),
    };
    let binding = Binding { index: 2, buffer: &fragments.0, range: Some((0, low_at + bytes(rows, rank))) };
    let low = low_matrix.map_or(rec.unused(3), |low| low.tiles[0].bind(3));
    let sections = (steps.div_ceil(4) + low_steps.div_ceil(4)) as u32;
    let groups = [(rows.next_multiple_of(COLUMNS) / 64) as u32, sections, 1];
    let kernel = Kernel::new("linear/fragments", entry).with_format(op::reader(w.ty));
    rec.dispatch(kernel, &params, &[tile.bind(1), binding, low], groups);
    low_at
}

/// The term of an adapter, and the byte of the fragments of B or Aᵀ.
struct Low<'a> {
    lora: &'a LowRank<'a>,
    at: u64,
}

/// A product with the matrix at the start of the fragments.
struct Product<'a> {
    name: &'static str,
    /// The operand, from column `first` on.
    x: &'a Packed,
    first: usize,
    /// Steps of the sum.
    summed: usize,
    y: View<'a>,
    columns: usize,
    accumulate: bool,
}

impl Product<'_> {
    fn launch(&self, rec: &mut Recorder, fragments: &Fragments, low: Option<Low>, rows: usize) {
        let Product { x, y, summed, columns, .. } = *self;
        let (steps, low_steps) =
            (summed.div_ceil(STEPS), low.as_ref().map_or(0, |low| low.lora.rank / STEPS));
        let numbers = Numbers {
            rows: rows as u32,
            columns: columns as u32,
            steps: steps as u32,
            low_steps: low_steps as u32,
            tiles: x.tiles(),
            z_tiles: low.as_ref().map_or(0, |low| low.lora.z.tiles()),
            ..Numbers::zeroed()
        };
        let operand = x.place(self.first);
        let z = low.as_ref().map_or(operand.clone(), |low| low.lora.z.place(low.lora.z_offset));
        let low_at = low.map_or(0, |low| low.at);
        let target = Target {
            y: y.rows.bind(0),
            rows: rows as u32,
            cols4: columns.div_ceil(4) as u32,
            stride4: y.stride4(),
            offset4: y.offset4(),
            accumulate: self.accumulate,
        };
        let wanted = parts_of(rec, [rows, columns, summed]);
        partial_sums::split_into(rec, &target, wanted, steps + low_steps, |rec, parts| {
            let numbers = Numbers {
                stride: 4 * parts.stride4,
                accumulate: parts.accumulate,
                part_steps: parts.steps,
                parts: parts.count,
                ..numbers
            };
            let result = parts.result.range.map_or(0, |range| range.0) + 16 * u64::from(parts.offset4);
            // Blocks that go on with the next tile copy its operands while the last results leave.
            let blocks = (blocks(rows, columns) * parts.count as usize).min(rec.gpu().multiprocessors());
            rec.launch(Launch {
                name: self.name,
                entry: Entry { text: TEXT, name: c"product" },
                buffers: vec![
                    operand,
                    z,
                    (fragments.0.clone(), 0),
                    (fragments.0.clone(), low_at),
                    x.factors_place(),
                    (parts.result.buffer.clone(), result),
                ],
                numbers: bytemuck::bytes_of(&numbers).to_vec(),
                blocks: [blocks as u32, 1, 1],
                threads: 384,
                bytes: (2 * summed * (rows + columns) + 4 * rows * columns) as u64,
            });
        });
    }
}
