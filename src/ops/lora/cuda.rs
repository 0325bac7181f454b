//! [`super::coop16_project`] and [`super::coop16`] over many rows by CUDA's kernels, shaders/lora/cuda, with the same operands.

use std::ffi::CStr;

use crate::gpu::{Entry, Launch, Recorder, ptx};
use crate::ops::pack::Packed;
use crate::ops::partial_sums::{self, Target};
use crate::ops::{Param, View};

/// Most columns of the thin operand that a block takes.
const MOST_COLUMNS: usize = 48;
/// Rows of a block of [`project`], blocks of it that a multiprocessor takes at a time, and the least steps of a part of its sums: so many do its
/// warps read at a time.
const ROWS: usize = 32;
const RESIDENT: usize = 4;
const LEAST_STEPS: usize = 32;
/// Warps of a block of [`project`], and of one of [`gradient`].
const WARPS: [u32; 2] = [8, 16];
/// Blocks of [`gradient`] of a multiprocessor, and rows that a part of its sums has a multiple of.
const GRADIENT_RESIDENT: usize = 2;
const STEPS: usize = 64;
/// Fewest steps of a part.
const LEAST_PART: usize = 2;

static PROJECT: &[u8] = ptx!("lora/cuda/project.ptx");
static GRADIENT: &[u8] = ptx!("lora/cuda/gradient.ptx");

/// Twin of the numbers of `Project` in shaders/lora/cuda/project.cu, and its padding.
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

/// Twin of the numbers of `Gradient` in shaders/lora/cuda/gradient.cu.
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
    accumulate: u32,
    transposed: u32,
    scale: f32,
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
    let (blocks, steps) = (rows.div_ceil(ROWS) * groups, summed.div_ceil(16));
    let wanted = (RESIDENT * rec.gpu().multiprocessors() / blocks).min(steps / LEAST_STEPS).max(1);
    let part_steps = steps.div_ceil(wanted);
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
        entry: Entry { text: PROJECT, name: kernels[each / 16 - 1] },
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
        blocks: [rows.div_ceil(ROWS) as u32, groups as u32, steps.div_ceil(part_steps) as u32],
        threads: 32 * WARPS[0],
        shared: 0,
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
    let (kernel, columns) = match each {
        16 => (c"gradient_16", 256),
        32 => (c"gradient_32", 256),
        _ => (c"gradient_48", 128),
    };
    let across = wide_columns.div_ceil(columns);
    let cols4 = (gradient.cols / 4) as u32;
    let y = gradient.bind(0);
    let target =
        Target { y, rows: gradient.rows as u32, cols4, stride4: cols4, offset4: 0, accumulate: true };
    let steps = rows.div_ceil(STEPS);
    let wanted =
        (GRADIENT_RESIDENT * rec.gpu().multiprocessors() / (across * groups)).min(steps / LEAST_PART);
    let buffers = [wide.place(0), wide.factors_place(), thin.place()];
    partial_sums::split(rec, &target, wanted, steps, |rec, parts| {
        let numbers = GradientNumbers {
            rows: rows as u32,
            wide_columns: wide_columns as u32,
            thin_columns: thin_columns as u32,
            tiles: wide.tiles(),
            thin_stride: thin.rows.stride as u32,
            y_stride: 4 * parts.stride4,
            part_rows: parts.steps * STEPS as u32,
            accumulate: parts.accumulate,
            transposed: u32::from(transposed),
            scale,
        };
        let [wide, factors, thin] = buffers;
        rec.launch(Launch {
            name: "lora/cuda.gradient",
            entry: Entry { text: GRADIENT, name: kernel },
            buffers: vec![wide, factors, thin, parts.place()],
            numbers: bytemuck::bytes_of(&numbers).to_vec(),
            blocks: [across as u32, groups as u32, parts.count],
            threads: 32 * WARPS[1],
            // Shared memory for the sums of three quarters of the warps, see gradient.cu.
            shared: (3 * 4 * 32 * each * 2) as u32,
            bytes: (2 * rows * wide_columns + 4 * (rows + wide_columns) * thin_columns) as u64,
        });
    });
}

/// Columns of the thin operand that a block takes, a multiple of 16, and the groups of so many.
fn column_groups(columns: usize) -> (usize, usize) {
    let groups = columns.div_ceil(MOST_COLUMNS);
    (columns.div_ceil(groups).next_multiple_of(16), groups)
}
