//! [`super::coop16_project`] and [`super::coop16`] over many rows by CUDA's kernels, shaders/lora/cuda, with the same operands.

use std::ffi::CStr;

use crate::gpu::{Entry, Launch, Recorder, ptx};
use crate::ops::pack::Packed;
use crate::ops::{Param, View};

/// Most columns of the thin operand that a block takes.
const MOST_COLUMNS: usize = 48;
/// Rows of the thin operand that a block has in shared memory at a time.
const CHUNK: usize = 128;
/// Most parts of a sum of [`gradient`]: the block that adds up more takes longer than they save.
const MOST_PARTS: usize = 16;

static PROJECT: &[u8] = ptx!("lora/cuda/project.ptx");
static PROJECT_STAGED: &[u8] = ptx!("lora/cuda/project-staged.ptx");
static GRADIENT: &[u8] = ptx!("lora/cuda/gradient.ptx");

/// The kernel of [`project`] for so many columns.
struct Projection {
    text: &'static [u8],
    /// Rows of a block.
    rows: usize,
    /// Blocks that a multiprocessor takes at a time, or with which it is fastest.
    resident: usize,
    /// Least steps of a part of a sum, and the number of which it has a multiple.
    least_steps: usize,
    multiple: usize,
    /// Bytes of shared memory, for tiles on their way and the thin operand.
    shared: usize,
}

impl Projection {
    fn of(columns: usize) -> Projection {
        let [text, staged] = [PROJECT, PROJECT_STAGED];
        let steps = CHUNK / 16;
        match columns {
            16 => Projection { text, rows: 32, resident: 4, least_steps: 32, multiple: 1, shared: 0 },
            _ => Projection {
                text: staged,
                rows: 128,
                resident: 1,
                least_steps: steps,
                multiple: steps,
                shared: (64 << 10) + in_shared(columns),
            },
        }
    }
}

/// The kernel of [`gradient`] for so many columns.
struct Summation {
    name: &'static CStr,
    /// Columns of the wide operand of a block.
    columns: usize,
    warps: usize,
    /// Blocks that a multiprocessor takes at a time, or with which it is fastest.
    resident: usize,
    /// Steps whose tiles are on their way to a warp.
    stages: usize,
}

impl Summation {
    fn of(columns: usize) -> Summation {
        match columns {
            16 => Summation { name: c"gradient_16", columns: 64, warps: 4, resident: 4, stages: 4 },
            32 => Summation { name: c"gradient_32", columns: 128, warps: 8, resident: 1, stages: 4 },
            _ => Summation { name: c"gradient_48", columns: 128, warps: 8, resident: 1, stages: 5 },
        }
    }
}

/// Twin of the numbers of `Project` in shaders/lora/cuda/project.cuh, and its padding.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct ProjectNumbers {
    rows: u32,
    summed: u32,
    columns: u32,
    tiles: u32,
    thin_stride: u32,
    y_stride: u32,
    packed_tiles: u32,
    part_steps: u32,
    scale: f32,
    padding: u32,
}

/// Twin of the numbers of `Gradient` in shaders/lora/cuda/gradient.cu, and its padding.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct GradientNumbers {
    rows: u32,
    wide_columns: u32,
    thin_columns: u32,
    tiles: u32,
    thin_stride: u32,
    y_stride: u32,
    part_rows: u32,
    transposed: u32,
    scale: f32,
    padding: u32,
}

/// Whether these kernels compute `rows` rows.
pub fn is_worth(rec: &Recorder, rows: usize) -> bool {
    rec.gpu().kernels().cuda().is_some_and(|least| rows >= least.tokens)
}

/// As [`super::coop16_project::project`].
pub fn project(rec: &mut Recorder, z: View, x: &Packed, a: &Param, rows: usize, packed: &Packed) {
    let kernels = [c"project_16", c"project_32", c"project_48"];
    let to = Destination { y: z, packed, column: 0 };
    launch_project(rec, ("lora/cuda.project", kernels), to, x, (a, [a.cols, a.rows]), 1.0, rows);
}

/// As [`super::coop16_project::project_back`], of one product, whose columns in `u` and `packed` begin at `column`, a multiple of 16.
pub fn project_back(
    rec: &mut Recorder,
    u: View,
    dy: &Packed,
    b: &Param,
    column: usize,
    scale: f32,
    rows: usize,
    packed: &Packed,
) {
    let kernels = [c"back_16", c"back_32", c"back_48"];
    let to = Destination { y: u, packed, column };
    launch_project(rec, ("lora/cuda.project_back", kernels), to, dy, (b, [b.rows, b.cols]), scale, rows);
}

/// Columns of `y` in f32, and the same columns of `packed`.
struct Destination<'a> {
    y: View<'a>,
    packed: &'a Packed,
    column: usize,
}

fn launch_project(
    rec: &mut Recorder,
    (name, kernels): (&'static str, [&'static CStr; 3]),
    to: Destination,
    wide: &Packed,
    (thin, [summed, columns]): (&Param, [usize; 2]),
    scale: f32,
    rows: usize,
) {
    let (each, groups) = column_groups(columns);
    let kernel = Projection::of(each);
    let (blocks, steps) = (rows.div_ceil(kernel.rows) * groups, summed.div_ceil(16));
    let wanted =
        (kernel.resident * rec.gpu().multiprocessors() / blocks).min(steps / kernel.least_steps).max(1);
    let part_steps = steps.div_ceil(wanted).next_multiple_of(kernel.multiple);
    let numbers = ProjectNumbers {
        rows: rows as u32,
        summed: summed as u32,
        columns: columns as u32,
        tiles: wide.tiles(),
        thin_stride: thin.cols as u32,
        y_stride: to.y.rows.stride as u32,
        packed_tiles: to.packed.tiles(),
        part_steps: part_steps as u32,
        scale,
        padding: 0,
    };
    rec.launch(Launch {
        name,
        entry: Entry { text: kernel.text, name: kernels[each / 16 - 1] },
        buffers: vec![
            wide.place(0),
            wide.factors_place(),
            (thin.buffer.clone(), thin.offset),
            to.y.rows.from(to.y.offset + to.column).place(),
            to.packed.place(to.column),
            (rec.gpu().partial_sums().clone(), 0),
            (rec.gpu().arrivals().clone(), 0),
        ],
        numbers: bytemuck::bytes_of(&numbers).to_vec(),
        blocks: [rows.div_ceil(kernel.rows) as u32, groups as u32, steps.div_ceil(part_steps) as u32],
        threads: 256,
        shared: kernel.shared as u32,
        bytes: (2 * rows * summed + 4 * summed * columns + 6 * rows * columns) as u64,
    });
}

/// `dA += uᵀ·x`, or `dB += scale·dyᵀ·z` where `transposed`, as [`super::coop16`]: `wide_columns` columns of x or dy, `thin_columns` of u or z.
pub fn gradient(
    rec: &mut Recorder,
    gradient: &Param,
    thin: View,
    wide: &Packed,
    [wide_columns, thin_columns]: [usize; 2],
    scale: f32,
    rows: usize,
    transposed: bool,
) {
    let (each, groups) = column_groups(thin_columns);
    let kernel = Summation::of(each);
    let (across, steps) = (wide_columns.div_ceil(kernel.columns), rows.div_ceil(CHUNK));
    let wanted = kernel.resident * rec.gpu().multiprocessors() / (across * groups);
    let part_steps = steps.div_ceil(wanted.clamp(1, MOST_PARTS));
    let numbers = GradientNumbers {
        rows: rows as u32,
        wide_columns: wide_columns as u32,
        thin_columns: thin_columns as u32,
        tiles: wide.tiles(),
        thin_stride: thin.rows.stride as u32,
        y_stride: gradient.cols as u32,
        part_rows: (part_steps * CHUNK) as u32,
        transposed: u32::from(transposed),
        scale,
        padding: 0,
    };
    rec.launch(Launch {
        name: "lora/cuda.gradient",
        entry: Entry { text: GRADIENT, name: kernel.name },
        buffers: vec![
            wide.place(0),
            wide.factors_place(),
            thin.place(),
            (gradient.buffer.clone(), gradient.offset),
            (rec.gpu().partial_sums().clone(), 0),
            (rec.gpu().arrivals().clone(), 0),
        ],
        numbers: bytemuck::bytes_of(&numbers).to_vec(),
        blocks: [across as u32, groups as u32, steps.div_ceil(part_steps) as u32],
        threads: 32 * kernel.warps as u32,
        shared: (kernel.warps * kernel.stages * 2048 + in_shared(each)) as u32,
        bytes: (2 * rows * wide_columns + 4 * (rows + wide_columns) * thin_columns) as u64,
    });
}

/// Columns of the thin operand that a block takes, a multiple of 16, and the groups of so many.
fn column_groups(columns: usize) -> (usize, usize) {
    let groups = columns.div_ceil(MOST_COLUMNS);
    (columns.div_ceil(groups).next_multiple_of(16), groups)
}

/// Bytes of shared memory for a chunk of so many columns of the thin operand, whose rows are 16 bytes apart; as columns they take less.
fn in_shared(columns: usize) -> usize {
    CHUNK * (2 * columns + 16)
}
