//! Products of rows that are grouped by expert with the experts' matrices in CUDA: those of [`crate::ops::linear::grouped_coop16`].

use std::ops::Range;

use super::panels::{LowStack, Panels, Stack, Way, bytes, expert_bytes, make};
use super::{COLUMNS, Numbers, STEPS, TOKENS, block, stages};
use crate::base::config::Experts;
use crate::gpu::{Gpu, Launch, Recorder, Texts, texts};
use crate::ops::experts::groups::Groups;
use crate::ops::linear::grouped::{Columns, ExpertWeight};
use crate::ops::linear::grouped_coop16::LowRank;
use crate::ops::pack::Packed;

/// Most experts that a launch multiplies with.
const EXPERTS: usize = 256;

static TEXTS: Texts = texts!("linear/cuda/grouped", ".ptx");

/// Twin of the numbers of `Arguments` in shaders/linear/cuda/grouped.cu.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct GroupedNumbers {
    product: Numbers,
    first_expert: u32,
    experts: u32,
    tile: u32,
    used: u32,
}

/// Whether the products of a pass over `tokens` tokens with `experts` are worth the panels of all their matrices.
pub fn is_worth(gpu: &Gpu, experts: &Experts, tokens: usize) -> bool {
    let least = gpu.kernels().cuda();
    least.is_some_and(|least| tokens * experts.used >= experts.count * least.expert_rows)
}

/// Bytes of panels for passes of at most `tokens` tokens through the experts of `shape` in a model of `width`, with adapters of rank
/// `rank`: about `room` of them, if that is not too little. `None` where no product with experts runs in CUDA.
pub fn panel_bytes(
    gpu: &Gpu,
    tokens: usize,
    shape: &Experts,
    width: usize,
    rank: usize,
    room: u64,
) -> Option<u64> {
    let is_worth = is_worth(gpu, shape, tokens);
    is_worth.then(|| expert_bytes(shape.count, 2 * shape.width, width, rank, room))
}

/// An operand of [`forward`] or [`backward`].
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// Rows by group, or the tokens' rows.
    pub tiles: &'a Packed,
    /// The column of the tiles, a multiple of 16, that the product begins with.
    pub first_column: usize,
    /// Whether the tiles hold the tokens' rows: every choice reads its token's.
    pub of_tokens: bool,
}

/// `y = scale·x·W_eᵀ + lora.scale·z·B_eᵀ`, as [`crate::ops::linear::grouped_coop16::forward`].
pub fn forward(
    rec: &mut Recorder,
    panels: &Panels,
    y: Columns,
    x: Input,
    w: &ExpertWeight,
    scale: f32,
    lora: Option<&LowRank>,
    groups: &Groups,
    tokens: usize,
) {
    let rows = y.count(w.rows);
    let product = Product { name: "linear/grouped_cuda.forward", way: Way::Forward, w, groups, tokens };
    let stack = Stack { first: y.first, rows, ..product.stack() };
    let low = lora.map(|lora| LowStack {
        matrix: lora.matrix,
        first: lora.first_row + y.first,
        stride: lora.matrix.rows / groups.experts.count,
        rank: lora.rank,
        scale: lora.scale,
    });
    product.run(rec, panels, y, x, stack, scale, lora.zip(low), false);
}

/// `dx = scale·dy·W_e + u·A_e`, added to `dx` where `accumulate`, as [`crate::ops::linear::grouped_coop16::backward`].
pub fn backward(
    rec: &mut Recorder,
    panels: &Panels,
    dx: Columns,
    dy: Input,
    w: &ExpertWeight,
    scale: f32,
    lora: Option<&LowRank>,
    groups: &Groups,
    tokens: usize,
    accumulate: bool,
) {
    let columns = dx.count(w.weight.cols);
    let product = Product { name: "linear/grouped_cuda.backward", way: Way::Backward, w, groups, tokens };
    let stack = Stack { first_column: dx.first, columns, ..product.stack() };
    let low = lora.map(|lora| LowStack {
        matrix: lora.matrix,
        first: 0,
        stride: lora.rank,
        rank: lora.rank,
        scale: lora.scale,
    });
    product.run(rec, panels, dx, dy, stack, scale, lora.zip(low), accumulate);
}

/// The product of a pass with every expert's matrix.
struct Product<'a> {
    name: &'static str,
    way: Way,
    w: &'a ExpertWeight,
    groups: &'a Groups,
    tokens: usize,
}

impl<'a> Product<'a> {
    /// The whole matrix of the first expert.
    fn stack(&self) -> Stack<'a> {
        let ExpertWeight { weight, rows } = self.w;
        Stack {
            weight,
            tile: 0,
            first: 0,
            rows: *rows,
            first_column: 0,
            columns: weight.cols,
            count: 1,
            stride: *rows,
        }
    }

    /// Multiplies with as many experts at a time as there is room for among the panels. `stack` is that of the first expert.
    fn run(
        &self,
        rec: &mut Recorder,
        panels: &Panels,
        y: Columns,
        x: Input,
        stack: Stack,
        scale: f32,
        lora: Option<(&LowRank, LowStack)>,
        accumulate: bool,
    ) {
        let rank = lora.as_ref().map_or(0, |(lora, _)| lora.rank);
        let [columns, summed] = match self.way {
            Way::Forward => [stack.rows, stack.columns],
            Way::Backward => [stack.columns, stack.rows],
        };
        let one = bytes(columns, summed) + bytes(columns, rank);
        let most = ((panels.size() / one) as usize).min(EXPERTS);
        assert!(most > 0, "the plan makes room for an expert");
        for (tile, of_tile) in self.w.weight.tiles.iter().enumerate() {
            let (first_expert, experts) = (of_tile.first_row / self.w.rows, of_tile.rows / self.w.rows);
            for first in (0..experts).step_by(most) {
                let count = most.min(experts - first);
                let part = Stack { tile, first: stack.first + first * stack.stride, count, ..stack };
                let expert = first_expert + first;
                let low =
                    lora.as_ref().map(|(_, low)| LowStack { first: low.first + expert * low.stride, ..*low });
                let low_at = make(rec, (panels, 0), self.way, &part, scale, low.as_ref());
                let z = lora.as_ref().map(|(lora, _)| (*lora, low_at));
                self.launch(rec, panels, y, x, [columns, summed], z, expert..expert + count, accumulate);
            }
        }
    }

    /// Multiplies with the matrices of `experts`, whose panels are made; `lora` has the byte of those of the adapters.
    fn launch(
        &self,
        rec: &mut Recorder,
        panels: &Panels,
        y: Columns,
        x: Input,
        [columns, summed]: [usize; 2],
        lora: Option<(&LowRank, u64)>,
        experts: Range<usize>,
        accumulate: bool,
    ) {
        let (groups, y) = (self.groups, y.y);
        let rows = groups.most_rows(self.tokens);
        let tiles = x.tiles.for_rows(if x.of_tokens { self.tokens } else { rows });
        let operand = tiles.place(x.first_column);
        let z = lora.map(|(lora, _)| lora.z.for_rows(rows));
        let z_place = z.as_ref().map_or(operand.clone(), |z| z.place(0));
        let (steps, low_steps) = (summed.div_ceil(STEPS), lora.map_or(0, |(lora, _)| lora.rank / STEPS));
        let numbers = GroupedNumbers {
            product: Numbers {
                rows: rows as u32,
                columns: columns.next_multiple_of(4) as u32,
                stride: 4 * y.stride4(),
                steps: steps as u32,
                low_steps: low_steps as u32,
                tiles: tiles.tiles(),
                z_tiles: z.map_or(0, |z| z.tiles()),
                accumulate: u32::from(accumulate),
                part_stages: stages(summed, low_steps) as u32,
                parts: 1,
            },
            first_expert: experts.start as u32,
            experts: experts.len() as u32,
            tile: groups.tile as u32,
            used: groups.experts.used as u32,
        };
        let result = y.rows.bind(0).range.map_or(0, |range| range.0) + 16 * u64::from(y.offset4());
        let most = (rows.div_ceil(TOKENS) + experts.len()) * columns.div_ceil(COLUMNS);
        let instructions = rec.gpu().kernels().matrix_instructions();
        let (threads, shared) = block(instructions);
        rec.launch(Launch {
            name: self.name,
            entry: TEXTS.entry(instructions, if x.of_tokens { c"gathered" } else { c"grouped" }),
            buffers: vec![
                operand,
                z_place,
                panels.place(0),
                panels.place(lora.map_or(0, |(_, at)| at)),
                tiles.factors_place(),
                (y.rows.buffer.clone(), result),
                groups.counts.place(),
                groups.firsts.place(),
                groups.choices.place(),
            ],
            numbers: bytemuck::bytes_of(&numbers).to_vec(),
            blocks: [most.min(rec.gpu().multiprocessors()) as u32, 1, 1],
            threads,
            shared: shared + 4 * (2 * EXPERTS as u32 + 1),
            bytes: (2 * experts.len() * summed * columns + rows * (2 * summed + 4 * columns)) as u64,
        });
    }
}
