//! [`crate::ops::attention`] by CUDA's kernels, shaders/attention/cuda: the operands and results of [`super::coop16`], without memory for
//! scores. Kernels for scores under a softcap are others, so that those without do not change.

use super::Attention;
use super::coop16::Operands;
use crate::gpu::{Entry, Gpu, Launch, MatrixInstructions, Recorder, Texts, ptx, texts};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::pack::Packed;
use crate::ops::partial_sums;

/// Queries of a block.
const QUERIES: usize = 128;
/// Queries or keys of a block of [`backward`], whose gradients lie in the registers of both warpgroups. With heads of [`LARGEST`], both have
/// the same rows, half as many; but for a block of dv by mma.sync.
const OWN_ROWS: usize = 128;
const LARGEST: usize = 256;
/// Warps of a block: each computes the values of 16 queries of a head.
const WARPS: usize = 8;
/// Threads of a block.
const THREADS: u32 = 32 * WARPS as u32;
/// Those of a block by `wgmma` that has another warpgroup, which copies.
const COPIED_THREADS: u32 = THREADS + 128;

/// The kernels for heads of one size, with or without a softcap of the scores.
struct Modules {
    head_size: usize,
    capped: bool,
    forward: Texts,
    backward: Texts,
}

macro_rules! modules {
    ($head_size:literal, $capped:literal, $behind:literal) => {
        Modules {
            head_size: $head_size,
            capped: $capped,
            forward: texts!("attention/cuda/forward", $behind),
            backward: texts!("attention/cuda/backward", $behind),
        }
    };
}

/// Size of the heads that have a forward kernel of their own, by `wgmma`: shaders/attention/cuda/forward-wide.cu.
const WIDE: usize = 512;
/// Queries of a block of it.
const WIDE_QUERIES: usize = 64;
/// Bytes of its dynamic shared memory: queries, keys and values, and the scores that warpgroups exchange.
const WIDE_BYTES: u32 = (3 * 2 * WIDE * 64 + 2 * 4 * WIDE_QUERIES * 64) as u32;

static FORWARD_WIDE: &[u8] = ptx!("attention/cuda/forward-wide-wgmma-512.ptx");

static MODULES: [Modules; 5] = [
    modules!(64, false, "-64.ptx"),
    modules!(128, false, "-128.ptx"),
    modules!(256, false, "-256.ptx"),
    modules!(128, true, "-128-capped.ptx"),
    modules!(256, true, "-256-capped.ptx"),
];

/// Twin of the numbers of `Forward` in shaders/attention/cuda/forward.cuh.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct ForwardNumbers {
    rows: u32,
    tiles: u32,
    heads: u32,
    kv_heads: u32,
    window: u32,
    scale: f32,
    has_sinks: u32,
    out_tiles: u32,
}

/// Twin of the numbers of `Backward` in shaders/attention/cuda/backward.cuh.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct BackwardNumbers {
    rows: u32,
    tiles: u32,
    heads: u32,
    kv_heads: u32,
    window: u32,
    scale: f32,
    q_scale: f32,
    k_scale: f32,
    out_tiles: u32,
    shares: u32,
    dout_tiles: u32,
    factor_stride: u32,
}

/// Whether `gpu` runs [`forward`] for heads of `head_size`, with `softcap` on their scores: as [`supports`], and on GPUs with `wgmma` for heads of
/// 512 values too.
pub fn supports_forward(gpu: &Gpu, head_size: usize, softcap: Option<f32>) -> bool {
    let wgmma = gpu.kernels().cuda().is_some_and(|cuda| cuda.instructions == MatrixInstructions::Wgmma);
    supports(gpu, head_size, softcap) || (wgmma && head_size == WIDE && softcap.is_none())
}

/// Whether `gpu` runs all of these kernels for heads of `head_size`, with `softcap` on their scores: those of Gemma 2 have 128 and 256 values.
pub fn supports(gpu: &Gpu, head_size: usize, softcap: Option<f32>) -> bool {
    gpu.kernels().cuda().is_some() && modules(head_size, softcap).is_some()
}

fn modules(head_size: usize, softcap: Option<f32>) -> Option<&'static Modules> {
    MODULES.iter().find(|m| (m.head_size, m.capped) == (head_size, softcap.is_some()))
}

/// As [`super::coop16::forward`].
pub fn forward(rec: &mut Recorder, attention: &Attention, out: &Act, lse: &Rows, operands: Operands) {
    let Operands { q, k, v } = operands;
    // Without sinks, the kernel reads none.
    let sinks = attention.sinks.unwrap_or(attention.bounds);
    let (result, factors, out_tiles) = places(out);
    let buffers = [
        q.place(0),
        k.place(0),
        v.place(0),
        (attention.bounds.clone(), 0),
        (sinks.clone(), 0),
        lse.place(),
        result,
        factors,
    ];
    let numbers = ForwardNumbers {
        rows: attention.rows as u32,
        tiles: q.tiles(),
        heads: attention.heads as u32,
        kv_heads: attention.kv_heads as u32,
        window: attention.window.unwrap_or(0) as u32,
        scale: 1.0 / (attention.q_scale * attention.k_scale),
        has_sinks: u32::from(attention.sinks.is_some()),
        out_tiles,
    };
    if attention.head_size == WIDE {
        let blocks = attention.heads * attention.rows.div_ceil(WIDE_QUERIES);
        let entry = Entry { text: FORWARD_WIDE, name: c"forward" };
        attention.launch(
            rec,
            "attention/cuda.forward_wide",
            entry,
            &buffers,
            &numbers,
            Grid::of(blocks, WIDE_BYTES),
        );
        return;
    }
    let instructions = rec.gpu().kernels().matrix_instructions();
    let blocks = attention.heads * attention.rows.div_ceil(QUERIES);
    let grid = match instructions {
        MatrixInstructions::Mma => Grid::of(blocks, 0),
        // Blocks take queries until there are no more.
        MatrixInstructions::Wgmma => Grid {
            blocks: blocks.min(rec.gpu().multiprocessors()),
            threads: COPIED_THREADS,
            shared: forward_bytes(attention.head_size),
        },
    };
    let entry = attention.modules().forward.entry(instructions, c"forward");
    attention.launch(rec, "attention/cuda.forward", entry, &buffers, &numbers, grid);
}

/// `ALL_BYTES` of shaders/attention/cuda/forward-wgmma.cu.
fn forward_bytes(head_size: usize) -> u32 {
    const STAGES: usize = 2;
    let keys = if head_size == LARGEST { 64 } else { 128 };
    ((QUERIES + 2 * STAGES * keys) * head_size * 2 + 16 + 2 * STAGES * 16 + 16) as u32
}

/// The grid of a launch.
struct Grid {
    blocks: usize,
    threads: u32,
    /// Bytes of a block's dynamic shared memory.
    shared: u32,
}

impl Grid {
    fn of(blocks: usize, shared: u32) -> Grid {
        Grid { blocks, threads: THREADS, shared }
    }
}

/// The gradients of [`forward`], as [`super::coop16_backward::Scratch::backward`]: `dq` is overwritten, `dk` and `dv` are added to. `dout`
/// is packed, by rows or in blocks; `values` is scratch for 8 bytes by head and token, or one token more where their number is odd. Parts of `dk` and `dv` may pass
/// through the device's scratch.
pub fn backward(
    rec: &mut Recorder,
    attention: &Attention,
    [dq, dk, dv]: [&Rows; 3],
    operands: Operands,
    dout: &Packed,
    (out, lse): (&Act, &Rows),
    values: &wgpu::Buffer,
) {
    let Operands { q, k, v } = operands;
    let Attention { heads, kv_heads, rows, .. } = *attention;
    let (out, _, out_tiles) = places(out);
    let shares = shares_of(rec.gpu(), attention);
    let buffers = [
        q.place(0),
        k.place(0),
        v.place(0),
        dout.place(0),
        dout.factors_place(),
        (attention.bounds.clone(), 0),
        out,
        lse.place(),
        (values.clone(), 0),
        dq.place(),
        dk.place(),
        dv.place(),
        (rec.gpu().partial_sums().clone(), 0),
    ];
    let numbers = BackwardNumbers {
        rows: rows as u32,
        tiles: q.tiles(),
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        window: attention.window.unwrap_or(0) as u32,
        scale: 1.0 / (attention.q_scale * attention.k_scale),
        q_scale: attention.q_scale,
        k_scale: attention.k_scale,
        out_tiles,
        shares: shares as u32,
        dout_tiles: dout.tiles(),
        factor_stride: dout.factors_of_row(heads * attention.head_size).1,
    };
    let instructions = rec.gpu().kernels().matrix_instructions();
    let entry = |name| attention.modules().backward.entry(instructions, name);
    let blocks = (heads * rows.div_ceil(16)).div_ceil(WARPS);
    attention.launch(rec, "attention/cuda.rows", entry(c"rows"), &buffers, &numbers, Grid::of(blocks, 0));
    let grid = backward_grid(rec.gpu(), attention, shares);
    attention.launch(rec, "attention/cuda.backward", entry(c"backward"), &buffers, &numbers, grid);
    if shares > 1 {
        partial_sums::add(rec, dk, rows, 0..shares);
        partial_sums::add(rec, dv, rows, shares..2 * shares);
    }
}

/// The grid of the kernel of [`backward`].
fn backward_grid(gpu: &Gpu, attention: &Attention, shares: usize) -> Grid {
    let Attention { heads, kv_heads, head_size, rows, .. } = *attention;
    let of_rows = rows.div_ceil(own_rows(head_size)) * (heads + kv_heads * shares);
    match gpu.kernels().matrix_instructions() {
        // dv has blocks of its own.
        MatrixInstructions::Mma => Grid::of(of_rows + rows.div_ceil(OWN_ROWS) * kv_heads * shares, 0),
        MatrixInstructions::Wgmma if head_size == LARGEST => Grid::of(of_rows, backward_wide_bytes()),
        // Blocks take rows until there are no more.
        MatrixInstructions::Wgmma => Grid {
            blocks: of_rows.min(gpu.multiprocessors()),
            threads: COPIED_THREADS,
            shared: backward_bytes(head_size),
        },
    }
}

/// Rows of a block by wgmma, and of one of dq or dk by mma.sync.
fn own_rows(head_size: usize) -> usize {
    if head_size == LARGEST { OWN_ROWS / 2 } else { OWN_ROWS }
}

/// Rows that meet those of a block at a time, by wgmma.
const STEP: usize = 64;

/// `ALL_BYTES` of shaders/attention/cuda/backward-wgmma.cu.
fn backward_bytes(head_size: usize) -> u32 {
    let stages = if head_size == 64 { 6 } else { 4 };
    let stage = 2 * STEP * head_size * 2 + STEP * 8 + 16;
    (2 * OWN_ROWS * head_size * 2 + stages * stage + 16 + 32 + 16 + OWN_ROWS * 20) as u32
}

/// `ALL_BYTES` of shaders/attention/cuda/backward-wide.cu.
fn backward_wide_bytes() -> u32 {
    let own = 2 * own_rows(LARGEST) * LARGEST * 2;
    (own + 2 * (2 * STEP * LARGEST * 2 + STEP * 8) + 64 + 2 * 64 * STEP * 4) as u32
}

/// The blocks among which [`backward`] shares out the query heads of a key: with few keys, one block for all of them would run long after
/// the others have ended.
fn shares_of(gpu: &Gpu, attention: &Attention) -> usize {
    let Attention { heads, kv_heads, head_size, rows, .. } = *attention;
    let group = heads / kv_heads;
    // By wgmma, blocks of keys have both dk and dv: they are the longest by far.
    let (wanted, own_rows) = match gpu.kernels().matrix_instructions() {
        MatrixInstructions::Mma => (gpu.multiprocessors() / 3, OWN_ROWS),
        MatrixInstructions::Wgmma => (gpu.multiprocessors() * 3 / 2, own_rows(head_size)),
    };
    let enough = wanted.div_ceil(rows.div_ceil(own_rows) * kv_heads);
    let room = partial_sums::room(rows, kv_heads * head_size / 4) / 2;
    let fits = |shares: &usize| group.is_multiple_of(*shares) && (*shares == 1 || *shares <= room);
    let shares: Vec<usize> = (1..=group).filter(fits).collect();
    shares.iter().copied().find(|shares| *shares >= enough).or(shares.last().copied()).unwrap_or(1)
}

/// The place of a result, that of its factors, and the tiles from one column of them to the next, or 0 where it is stored in f32.
fn places(out: &Act) -> ((wgpu::Buffer, u64), (wgpu::Buffer, u64), u32) {
    match out.tiles().filter(|_| !out.has_rows()) {
        Some(tiles) => (tiles.place(0), tiles.factors_place(), tiles.tiles()),
        None => (out.rows().place(), out.rows().place(), 0),
    }
}

impl Attention<'_> {
    fn modules(&self) -> &'static Modules {
        modules(self.head_size, self.softcap).expect("`supports` accepts the head size")
    }

    /// Launches a kernel.
    fn launch(
        &self,
        rec: &mut Recorder,
        name: &'static str,
        entry: Entry,
        buffers: &[(wgpu::Buffer, u64)],
        numbers: &impl bytemuck::Pod,
        grid: Grid,
    ) {
        let mut launch =
            Launch::of_buffers(name, entry, buffers, numbers, [grid.blocks as u32, 1, 1], grid.threads);
        launch.shared = grid.shared;
        if let Some(cap) = self.softcap {
            // The last member of both structs, which end at a multiple of 8 bytes.
            launch.numbers.extend(bytemuck::bytes_of(&[cap, 0.0]));
        }
        rec.launch(launch);
    }
}
