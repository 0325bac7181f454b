//! Long products of [`crate::ops::linear`] by kernels of CUDA, shaders/linear/cuda: f16 operands, each row scaled, and f32 sums.
//!
//! They read activations as tiles, as [`super::coop16`] does, and weights as panels: f16 in the order of their shared memory, which a kernel of
//! the device makes of one quantized matrix at a time, in scratch that the next one overwrites.

pub mod grouped;
mod panels;

use std::ffi::CStr;

use bytemuck::Zeroable;

use super::coop16::LowRank;
use crate::gpu::{Launch, MatrixInstructions, Recorder, Texts, texts};
use crate::ops::linear::coop16::Product as Whole;
use crate::ops::pack::{FACTOR_COLUMNS, Packed};
use crate::ops::partial_sums::{self, Target};
use crate::ops::{View, Weight};

use panels::{LowStack, Stack, bytes, make};
pub use panels::{Panels, Way, head_bytes, panel_bytes, product_bytes};

/// Columns that a block computes at a time.
const COLUMNS: usize = FACTOR_COLUMNS;
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

/// Most products that a result in f16 blocks sums.
const MOST_SUMMED: usize = 4;

/// Twin of the numbers of `HalfArguments` in shaders/linear/cuda/whole.cu.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct HalfNumbers {
    product: Numbers,
    tiles: u32,
    stride: u32,
}

/// Twin of those of `SumArguments`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct SumNumbers {
    products: [Numbers; MOST_SUMMED],
    count: u32,
    tiles: u32,
    stride: u32,
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

/// Whether [`forward`] may leave a product of `rows` tokens with `w`, with an adapter of rank `rank`, in f16 blocks: every launch writes whole
/// ones, and no sum is split.
pub fn leaves_halves(rec: &Recorder, panels: &Panels, w: &Weight, rank: usize, rows: usize) -> bool {
    let launches = parts(panels, w, rank);
    let whole = |part: &Part| {
        let summed = [rows, part.rows.next_multiple_of(4), w.cols];
        part.row().is_multiple_of(COLUMNS) && parts_of(rec, summed) == 1
    };
    is_worth(rec, [rows, w.rows, w.cols]) && launches.iter().all(whole)
}

/// Whether [`backward_in_halves`] may sum the gradients of the input of some matrices over `rows` rows: there is room for the panels of all,
/// with adapters of rank `rank`, and no sum is split.
pub fn leaves_half_gradients(
    rec: &Recorder,
    panels: &Panels,
    matrices: &[&Weight],
    rank: usize,
    rows: usize,
) -> bool {
    let Some(first) = matrices.first().filter(|_| matrices.len() <= MOST_SUMMED) else { return false };
    let shape = [rows, first.cols, matrices.iter().map(|w| w.rows).sum()];
    let bytes: u64 = matrices.iter().map(|w| bytes(w.cols, w.rows) + bytes(w.cols, rank)).sum();
    let is_whole = matrices.iter().all(|w| w.tiles.len() == 1) && bytes <= panels.size();
    is_whole && is_worth(rec, shape) && parts_of(rec, shape) == 1
}

/// `y = scale·x·Wᵀ + lora.scale·z·Bᵀ`, as [`super::coop16::forward`]; in the blocks `halves` where they are given.
pub fn forward(rec: &mut Recorder, panels: &Panels, product: &Whole, halves: Option<&Packed>) {
    let Whole { y, x, w, scale, lora, rows, .. } = *product;
    for part in parts(panels, w, lora.map_or(0, |l| l.rank)) {
        let low_at = part.make(rec, (panels, 0), Way::Forward, scale, lora);
        let low = lora.map(|lora| Low { lora, panels: panels.place(low_at) });
        let product = Product {
            name: "linear/cuda.forward",
            x,
            first: 0,
            summed: w.cols,
            y: View { rows: y.rows, offset: y.offset + part.row() },
            columns: part.rows.next_multiple_of(4),
            accumulate: false,
        };
        let source = Source { product, low, panels: panels.place(0) };
        match halves {
            Some(halves) => launch_in_halves(rec, &[source], (halves, part.row()), rows),
            None => source.launch(rec, rows),
        }
    }
}

/// `dx = Σ scale·dy·W + u·A` over some matrices, in f16 blocks: see [`leaves_half_gradients`].
pub fn backward_in_halves(rec: &mut Recorder, panels: &Panels, products: &[Whole], dx: &Packed) {
    let mut at = 0;
    let mut sources = Vec::new();
    for &Whole { y, x, w, scale, lora, .. } in products {
        let part = Part { weight: w, tile: 0, first: 0, rows: w.rows };
        let low_at = part.make(rec, (panels, at), Way::Backward, scale, lora);
        let low = lora.map(|lora| Low { lora, panels: panels.place(low_at) });
        let (name, columns) = ("linear/cuda.backward", w.cols);
        let product = Product { name, x, first: 0, summed: w.rows, y, columns, accumulate: false };
        sources.push(Source { product, low, panels: panels.place(at) });
        at = low_at + bytes(w.cols, lora.map_or(0, |lora| lora.rank));
    }
    launch_in_halves(rec, &sources, (dx, 0), products[0].rows);
}

/// `dx = scale·dy·W + u·A`, added to `dx` where the product accumulates, as [`super::coop16::backward`].
pub fn backward(rec: &mut Recorder, panels: &Panels, product: &Whole) {
    let Whole { y: dx, x: dy, w, scale, lora, rows, accumulate } = *product;
    for (i, part) in parts(panels, w, lora.map_or(0, |l| l.rank)).into_iter().enumerate() {
        let lora = lora.filter(|_| i == 0);
        let low_at = part.make(rec, (panels, 0), Way::Backward, scale, lora);
        let low = lora.map(|lora| Low { lora, panels: panels.place(low_at) });
        let product = Product {
            name: "linear/cuda.backward",
            x: dy,
            first: part.row(),
            summed: part.rows,
            y: dx,
            columns: w.cols,
            accumulate: accumulate || i > 0,
        };
        Source { product, low, panels: panels.place(0) }.launch(rec, rows);
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

    /// Makes its panels from a byte on, and behind them those of its adapter's matrix. Returns the byte where these begin.
    fn make(
        &self,
        rec: &mut Recorder,
        panels: (&Panels, u64),
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
        make(rec, panels, way, &stack, scale, low.as_ref())
    }
}

/// The parts of `w` that have room among the panels, beside those of its adapter of rank `rank`.
fn parts<'a>(panels: &Panels, w: &'a Weight, rank: usize) -> Vec<Part<'a>> {
    let room = panels.size() - bytes(w.rows.max(w.cols), rank);
    let most = (room / bytes(EDGE, w.cols)) as usize * EDGE;
    assert!(most > 0, "the plan makes room for some rows");
    let most = if most > COLUMNS { most / COLUMNS * COLUMNS } else { most };
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
    Part { weight: w, tile: 0, first: 0, rows: w.rows }.make(rec, (panels, 0), way, scale, lora)
}

/// The term of an adapter, and the place of the panels of B or Aᵀ.
struct Low<'a> {
    lora: &'a LowRank<'a>,
    panels: (wgpu::Buffer, u64),
}

/// A product.
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

/// A product, the term of its adapter, and the panels of its matrix.
struct Source<'a> {
    product: Product<'a>,
    low: Option<Low<'a>>,
    panels: (wgpu::Buffer, u64),
}

impl Source<'_> {
    /// Steps of the sum in sixteenths: of the product, and of its term.
    fn steps(&self) -> [usize; 2] {
        let rank = self.low.as_ref().map_or(0, |low| low.lora.rank);
        [self.product.summed.div_ceil(STEPS), rank / STEPS]
    }

    fn stages(&self) -> usize {
        stages(self.product.summed, self.steps()[1])
    }

    /// The buffers of its operands.
    fn operands(&self) -> [(wgpu::Buffer, u64); 5] {
        let x = self.product.x;
        let operand = x.place(self.product.first);
        let z = self.low.as_ref().map_or(operand.clone(), |low| low.lora.z.place(low.lora.z_offset));
        let low = self.low.as_ref().map_or(&self.panels, |low| &low.panels).clone();
        [operand, z, self.panels.clone(), low, x.factors_place()]
    }

    /// Its numbers, in one part of a sum over `rows` rows.
    fn numbers(&self, rows: usize) -> Numbers {
        let [steps, low_steps] = self.steps().map(|steps| steps as u32);
        Numbers {
            rows: rows as u32,
            columns: self.product.columns as u32,
            steps,
            low_steps,
            tiles: self.product.x.tiles(),
            z_tiles: self.low.as_ref().map_or(0, |low| low.lora.z.tiles()),
            part_stages: self.stages() as u32,
            parts: 1,
            ..Numbers::zeroed()
        }
    }

    /// Multiplies `rows` rows, into rows of f32.
    fn launch(&self, rec: &mut Recorder, rows: usize) {
        let Product { y, summed, columns, accumulate, .. } = self.product;
        let target = Target {
            y: y.rows.bind(0),
            rows: rows as u32,
            cols4: columns.div_ceil(4) as u32,
            stride4: y.stride4(),
            offset4: y.offset4(),
            accumulate,
        };
        let wanted = parts_of(rec, [rows, columns, summed]);
        partial_sums::split(rec, &target, wanted, self.stages(), |rec, parts| {
            let numbers = Numbers {
                stride: 4 * parts.stride4,
                accumulate: parts.accumulate,
                part_stages: parts.steps,
                parts: parts.count,
                ..self.numbers(rows)
            };
            let buffers = [&self.operands()[..], &[parts.place()]].concat();
            let bytes = (2 * summed * (rows + columns) + 4 * rows * columns) as u64;
            let count = blocks(rows, columns) * parts.count as usize;
            dispatch(rec, self.product.name, c"product", buffers, &numbers, count, bytes);
        });
    }
}

/// Sums the products of `sources` over `rows` rows into f16 blocks, from a column on.
fn launch_in_halves(rec: &mut Recorder, sources: &[Source], (y, first): (&Packed, usize), rows: usize) {
    let Product { name, columns, .. } = sources[0].product;
    let (count, tiles, stride) = (sources.len(), y.tiles(), y.factors_of_row(columns).1);
    let results = [y.place(first), y.block_place(first)];
    let summed: usize = sources.iter().map(|source| source.product.summed).sum();
    let bytes = (2 * summed * (rows + columns) + 2 * rows * columns) as u64;
    let blocks = blocks(rows, columns);
    if let [source] = sources {
        let numbers = HalfNumbers { product: source.numbers(rows), tiles, stride };
        let buffers = [&source.operands()[..], &results].concat();
        return dispatch(rec, name, c"product_in_halves", buffers, &numbers, blocks, bytes);
    }
    let source = |i: usize| sources.get(i).unwrap_or(&sources[0]);
    let products = std::array::from_fn(|i| source(i).numbers(rows));
    let numbers = SumNumbers { products, count: count as u32, tiles, stride };
    let buffers = (0..MOST_SUMMED).flat_map(|i| source(i).operands()).chain(results).collect();
    let is_alike = |other: &Source| other.product.x.shares_factors(source(0).product.x);
    let entry = if sources.iter().all(is_alike) { c"sum_of_alike_in_halves" } else { c"sum_in_halves" };
    dispatch(rec, name, entry, buffers, &numbers, blocks, bytes);
}

/// Runs the kernel `entry` over `count` blocks of results.
fn dispatch(
    rec: &mut Recorder,
    name: &'static str,
    entry: &'static CStr,
    buffers: Vec<(wgpu::Buffer, u64)>,
    numbers: &impl bytemuck::NoUninit,
    count: usize,
    bytes: u64,
) {
    let instructions = rec.gpu().kernels().matrix_instructions();
    let (threads, shared) = block(instructions);
    rec.launch(Launch {
        name,
        entry: TEXTS.entry(instructions, entry),
        buffers,
        numbers: bytemuck::bytes_of(numbers).to_vec(),
        // Blocks that go on with the next tile copy its operands while the last results leave.
        blocks: [count.min(rec.gpu().multiprocessors()) as u32, 1, 1],
        threads,
        shared,
        bytes,
    });
}
