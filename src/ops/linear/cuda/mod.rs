//! Long products of [`crate::ops::linear`] by kernels of CUDA, shaders/linear/cuda: f16 operands, each row scaled, and f32 sums.
//!
//! They read activations as tiles, as [`super::coop16`] does, and weights as panels: f16 in the order of their shared memory, which a kernel of
//! the device makes of one quantized matrix at a time, in scratch that the next one overwrites.

pub mod grouped;
mod panels;

use bytemuck::Zeroable;

use super::coop16::LowRank;
use crate::gpu::{Launch, MatrixInstructions, Recorder, Texts, texts};
use crate::ops::pack::Packed;
use crate::ops::partial_sums::{self, Target};
use crate::ops::{View, Weight};

use panels::{LowStack, Stack, bytes, make};
pub use panels::{Panels, Way, head_bytes, panel_bytes, product_bytes};

/// Columns that a block computes at a time.
const COLUMNS: usize = 256;
/// Tokens that a block computes at a time.
pub const TOKENS: usize = 128;
/// Steps of the sum that one matrix instruction takes.
const STEPS: usize = 16;
/// Rows and columns of a panel; also the steps of the sum that a block copies at a time, a stage.
const EDGE: usize = 64;

static TEXTS: Texts = texts!("linear/cuda/whole", ".ptx");

/// Threads of a block, and bytes of its shared memory.
fn block(instructions: MatrixInstructions) -> (u32, u32) {
    let four_stages = |steps: usize| (4 * (TOKENS + COLUMNS) * steps * 2) as u32;
    match instructions {
        MatrixInstructions::Mma => (256, four_stages(EDGE / 2)),
        MatrixInstructions::Wgmma => (384, four_stages(EDGE) + 64), // and their barriers
    }
}

/// Twin of `Numbers` in shaders/linear/cuda/parts.cuh.
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
    part_stages: u32,
    parts: u32,
}

/// Most parts of a sum.
const MOST_PARTS: usize = 16;

/// Fewest stages of a part of a sum: with fewer, to add up the parts costs more than the split saves.
const LEAST_STAGES: usize = 12;

/// Whether a product of `rows` tokens with `columns` results each, sums of `summed` terms, is worth the panels of its matrix.
pub fn is_worth(rec: &Recorder, [rows, columns, summed]: [usize; 3]) -> bool {
    let work = rows as u64 * columns as u64 * summed as u64;
    let busy = blocks(rows, columns) * parts_of(rec, [rows, columns, summed]);
    rec.gpu()
        .kernels()
        .cuda()
        .is_some_and(|least| rows >= least.tokens && work >= least.multiplications && busy >= least.blocks)
}

/// The parts of a product's sums that take the least time, in stages of a block: every multiprocessor takes its blocks in turn, and each
/// block's results leave at its end. Then the parts are added up.
fn parts_of(rec: &Recorder, [rows, columns, summed]: [usize; 3]) -> usize {
    const LEAVE: usize = 6; // a block's results
    const ADD: usize = 1; // one part of the results of ten blocks
    const PASS: usize = 8; // one more dispatch
    let (blocks, stages) = (blocks(rows, columns), summed / EDGE);
    let time = |parts: &usize| {
        let turns = (blocks * parts).div_ceil(rec.gpu().multiprocessors());
        let sum = if *parts > 1 { PASS + ADD * blocks * (parts + 1) / 10 } else { 0 };
        turns * (stages.div_ceil(*parts) + LEAVE) + sum
    };
    let room = partial_sums::room(rows, columns.div_ceil(4)).min(MOST_PARTS);
    (1..=room.min(stages / LEAST_STAGES)).min_by_key(time).unwrap_or(1)
}

/// Stages of a sum of `summed` steps, and of `low_steps` sixteenths of an adapter's rank.
fn stages(summed: usize, low_steps: usize) -> usize {
    summed.div_ceil(EDGE) + (low_steps * STEPS).div_ceil(EDGE)
}

/// Blocks of a product of `rows` tokens.
fn blocks(rows: usize, columns: usize) -> usize {
    columns.div_ceil(COLUMNS) * rows.div_ceil(TOKENS)
}

/// `y = scale·x·Wᵀ + lora.scale·z·Bᵀ`, as [`super::coop16::forward`].
pub fn forward(
    rec: &mut Recorder,
    panels: &Panels,
    y: View,
    x: &Packed,
    w: &Weight,
    scale: f32,
    lora: Option<&LowRank>,
    rows: usize,
) {
    for part in parts(panels, w, lora.map_or(0, |l| l.rank)) {
        let low_at = part.make(rec, panels, Way::Forward, scale, lora);
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
        product.launch(rec, panels, low, rows);
    }
}

/// `dx = scale·dy·W + u·A`, added to `dx` where `accumulate`, as [`super::coop16::backward`].
pub fn backward(
    rec: &mut Recorder,
    panels: &Panels,
    dx: View,
    dy: &Packed,
    w: &Weight,
    scale: f32,
    lora: Option<&LowRank>,
    rows: usize,
    accumulate: bool,
) {
    for (i, part) in parts(panels, w, lora.map_or(0, |l| l.rank)).into_iter().enumerate() {
        let lora = lora.filter(|_| i == 0);
        let low_at = part.make(rec, panels, Way::Backward, scale, lora);
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
        product.launch(rec, panels, low, rows);
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

    /// Makes its panels, and behind them those of its adapter's matrix. Returns the byte where these begin.
    fn make(&self, rec: &mut Recorder, panels: &Panels, way: Way, scale: f32, lora: Option<&LowRank>) -> u64 {
        let Part { weight, tile, first, rows } = *self;
        let (columns, count, stride) = (weight.cols, 1, 0);
        let stack = Stack { weight, tile, first, rows, first_column: 0, columns, count, stride };
        let low = lora.map(|lora| LowStack {
            matrix: lora.matrix,
            first: if way == Way::Forward { self.row() } else { lora.first_row },
            stride: 0,
            rank: lora.rank,
            scale: lora.scale,
        });
        make(rec, panels, way, &stack, scale, low.as_ref())
    }
}

/// The parts of `w` that have room among the panels, beside those of its adapter of rank `rank`.
fn parts<'a>(panels: &Panels, w: &'a Weight, rank: usize) -> Vec<Part<'a>> {
    let room = panels.buffer().size() - bytes(w.rows.max(w.cols), rank);
    let most = (room / bytes(EDGE, w.cols)) as usize * EDGE;
    assert!(most > 0, "the plan makes room for some rows");
    let of_tile = |(tile, rows): (usize, usize)| {
        let part = move |first| Part { weight: w, tile, first, rows: most.min(rows - first) };
        (0..rows).step_by(most).map(part)
    };
    w.tiles.iter().map(|tile| tile.rows).enumerate().flat_map(of_tile).collect()
}

/// Makes the panels of `scale·w`, a matrix in one tile, and behind them those of its adapter's matrix. Returns the byte where these begin.
pub fn prepare(
    rec: &mut Recorder,
    panels: &Panels,
    way: Way,
    w: &Weight,
    scale: f32,
    lora: Option<&LowRank>,
) -> u64 {
    Part { weight: w, tile: 0, first: 0, rows: w.rows }.make(rec, panels, way, scale, lora)
}

/// The term of an adapter, and the byte of the panels of B or Aᵀ.
struct Low<'a> {
    lora: &'a LowRank<'a>,
    at: u64,
}

/// A product with the matrix at the start of the panels.
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
    fn launch(&self, rec: &mut Recorder, panels: &Panels, low: Option<Low>, rows: usize) {
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
        partial_sums::split(rec, &target, wanted, stages(summed, low_steps), |rec, parts| {
            let numbers = Numbers {
                stride: 4 * parts.stride4,
                accumulate: parts.accumulate,
                part_stages: parts.steps,
                parts: parts.count,
                ..numbers
            };
            let instructions = rec.gpu().kernels().matrix_instructions();
            let (threads, shared) = block(instructions);
            // Blocks that go on with the next tile copy its operands while the last results leave.
            let blocks = (blocks(rows, columns) * parts.count as usize).min(rec.gpu().multiprocessors());
            rec.launch(Launch {
                name: self.name,
                entry: TEXTS.entry(instructions, c"product"),
                buffers: vec![
                    operand,
                    z,
                    (panels.buffer().clone(), 0),
                    (panels.buffer().clone(), low_at),
                    x.factors_place(),
                    parts.place(),
                ],
                numbers: bytemuck::bytes_of(&numbers).to_vec(),
                blocks: [blocks as u32, 1, 1],
                threads,
                shared,
                bytes: (2 * summed * (rows + columns) + 4 * rows * columns) as u64,
            });
        });
    }
}
