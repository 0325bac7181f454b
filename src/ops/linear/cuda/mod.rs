//! Long products of [`crate::ops::linear`] by kernels of CUDA, shaders/linear/cuda: f16 operands, each row scaled, and f32 sums.
//!
//! They read activations as tiles, as [`super::coop16`] does, and weights as fragments: f16 in the order in which their threads hold
//! them, which a kernel of the device makes of one quantized matrix at a time, in scratch that the next one overwrites.

mod fragments;
pub mod grouped;

use bytemuck::Zeroable;

use super::coop16::LowRank;
use crate::gpu::{Entry, Launch, Recorder, ptx};
use crate::ops::pack::Packed;
use crate::ops::partial_sums::{self, Target};
use crate::ops::{View, Weight};

pub use fragments::{Fragments, Way, fragment_bytes, head_bytes, product_bytes};
use fragments::{LowStack, Stack, bytes, make};

/// Columns that a block computes at a time.
const COLUMNS: usize = 128;
/// Tokens that a block computes at a time.
pub const TOKENS: usize = 256;
/// Steps of the sum in a fragment.
const STEPS: usize = 16;

static TEXT: &[u8] = ptx!("linear/cuda/whole.ptx");

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
    part_steps: u32,
    parts: u32,
}

/// Most parts of a sum.
const MOST_PARTS: usize = 16;

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

/// The parts of a product's sums that take the least time, in steps of a block: every multiprocessor takes its blocks in turn, and each
/// block's results leave at its end. Then the parts are added up.
fn parts_of(rec: &Recorder, [rows, columns, summed]: [usize; 3]) -> usize {
    const LEAVE: usize = 24; // a block's results
    const ADD: usize = 2; // one part of the results of five blocks
    const PASS: usize = 30; // one more dispatch
    let (blocks, steps) = (blocks(rows, columns), summed / STEPS);
    let time = |parts: &usize| {
        let turns = (blocks * parts).div_ceil(rec.gpu().multiprocessors());
        let sum = if *parts > 1 { PASS + ADD * blocks * (parts + 1) / 5 } else { 0 };
        turns * (steps.div_ceil(*parts) + LEAVE) + sum
    };
    let room = partial_sums::room(rows, columns.div_ceil(4)).min(MOST_PARTS);
    (1..=room.min(steps / LEAST_STEPS)).min_by_key(time).unwrap_or(1)
}

/// Blocks of a product of `rows` tokens.
fn blocks(rows: usize, columns: usize) -> usize {
    columns.div_ceil(COLUMNS) * rows.div_ceil(TOKENS)
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
        let low_at = part.make(rec, fragments, Way::Forward, scale, lora);
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
        let low_at = part.make(rec, fragments, Way::Backward, scale, lora);
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

    /// Makes its fragments, and behind them those of its adapter's matrix. Returns the byte where these begin.
    fn make(
        &self,
        rec: &mut Recorder,
        fragments: &Fragments,
        way: Way,
        scale: f32,
        lora: Option<&LowRank>,
    ) -> u64 {
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
        make(rec, fragments, way, &stack, scale, low.as_ref())
    }
}

/// The parts of `w` that have room among the fragments, beside those of its adapter of rank `rank`.
fn parts<'a>(fragments: &Fragments, w: &'a Weight, rank: usize) -> Vec<Part<'a>> {
    let room = fragments.buffer().size() - bytes(w.rows.max(w.cols), rank);
    let most = (room / bytes(COLUMNS, w.cols.next_multiple_of(COLUMNS))) as usize * COLUMNS;
    assert!(most > 0, "the plan makes room for some rows");
    let of_tile = |(tile, rows): (usize, usize)| {
        let part = move |first| Part { weight: w, tile, first, rows: most.min(rows - first) };
        (0..rows).step_by(most).map(part)
    };
    w.tiles.iter().map(|tile| tile.rows).enumerate().flat_map(of_tile).collect()
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
    Part { weight: w, tile: 0, first: 0, rows: w.rows }.make(rec, fragments, way, scale, lora)
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
        partial_sums::split(rec, &target, wanted, steps + low_steps, |rec, parts| {
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
                    (fragments.buffer().clone(), 0),
                    (fragments.buffer().clone(), low_at),
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
