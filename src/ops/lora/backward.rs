//! `u = scale·dy·B` and `dB += scale·dyᵀ·z` of products side by side from one read of each `dy`, by CUDA's kernels, shaders/lora/cuda.
//! [`super::coop16_project`] and [`super::coop16`] read it twice.

use std::ffi::CStr;

use super::coop16_gradients::Gradient;
use super::coop16_project::Member;
use super::{FEW, cuda};
use crate::gpu::{Entry, Launch, PARTIAL_SUMS, Recorder, ptx};
use crate::ops::View;
use crate::ops::pack::Packed;

/// Most products of a call.
pub const MOST: usize = 3;

/// Warps of a block.
const WARPS: usize = 8;
/// Outputs times tokens of a block from which on wider strips are faster: `u` has fewer parts then.
const WIDE: usize = 5 << 17;

static BACKWARD: &[u8] = ptx!("lora/cuda/backward.ptx");

/// A kernel, and the one that adds up what its blocks leave.
struct Kernel {
    name: &'static CStr,
    finish: &'static CStr,
    /// Columns of tiles of a warp.
    columns: usize,
    /// Steps whose tiles are on their way to a warp.
    stages: usize,
    /// Tokens whose `z`, and whose sums of `u`, are in shared memory at a time.
    chunk: usize,
}

impl Kernel {
    fn of(rank: usize, is_wide: bool) -> Kernel {
        let finish = if rank == 16 { c"finish_16" } else { c"finish_32" };
        match (rank, is_wide) {
            (16, true) => Kernel { name: c"backward_16_wide", finish, columns: 8, stages: 2, chunk: 32 },
            (16, false) => Kernel { name: c"backward_16", finish, columns: 4, stages: 3, chunk: 64 },
            _ => Kernel { name: c"backward_32", finish, columns: 4, stages: 2, chunk: 32 },
        }
    }

    /// Outputs of a block.
    fn strip(&self) -> usize {
        16 * self.columns * WARPS
    }

    /// Bytes of shared memory: tiles on their way, sums of `u`, and `z` in rows 16 bytes apart.
    fn shared(&self, rank: usize) -> usize {
        512 * WARPS * self.columns * self.stages + self.chunk * (4 * WARPS * rank + 2 * rank + 16)
    }
}

/// Twin of the numbers of `Backward` in shaders/lora/cuda/backward.cu.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Numbers {
    columns: [u32; MOST],
    tiles: [u32; MOST],
    ends: [u32; MOST],
    count: u32,
    strip: u32,
    rows: u32,
    padded_rows: u32,
    z_stride: u32,
    u_stride: u32,
    packed_tiles: u32,
    part_rows: u32,
    parts: u32,
    u_blocks: u32,
    scale: f32,
}

/// A product's operands and gradient.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    /// `dy`, `B`, and where `u` lies.
    pub member: Member<'a>,
    /// `dB`, and `z` `[rows, R]`.
    pub gradient: Gradient<'a>,
}

impl Product<'_> {
    fn rank(&self) -> usize {
        self.member.b.cols
    }

    fn outputs(&self) -> usize {
        self.member.b.rows
    }
}

/// Whether these kernels compute `rows` rows of `products`, of which there are some.
pub fn is_worth(rec: &Recorder, products: &[Product], rows: usize) -> bool {
    let rank = products[0].rank();
    let alike = products.iter().all(|product| product.rank() == rank);
    rows > FEW && [16, 32].contains(&rank) && alike && cuda::is_worth(rec, rows)
}

/// Computes `u`, in f32 and in `packed`, as [`super::coop16_project::project_back`] does, and adds to each `dB`. There are at most
/// [`MOST`] products, of the same rank, whose `z` lie in rows of the same length.
pub fn backward(rec: &mut Recorder, u: View, products: &[Product], scale: f32, rows: usize, packed: &Packed) {
    let way = Way::of(products, rows, rec.gpu().multiprocessors());
    backward_by(rec, u, products, scale, rows, packed, way);
}

/// The size of the parts of sums.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Most rows of a launch, a multiple of 64.
    pub most_rows: usize,
    /// Whether strips of outputs are the wider ones of rank 16.
    pub is_wide: bool,
}

impl Way {
    /// The fastest for which the device's scratch has room.
    fn of(products: &[Product], rows: usize, multiprocessors: usize) -> Way {
        let rank = products[0].rank();
        let strip = Kernel::of(rank, false).strip();
        let strips: usize = products.iter().map(|product| product.outputs().div_ceil(strip)).sum();
        // Strips of either width have at most so many blocks of sums of dB.
        let of_b = 4 * rank * strips.max(multiprocessors) * Kernel::of(rank, true).strip();
        let room = (PARTIAL_SUMS as usize).saturating_sub(of_b);
        let most_rows = (room / (4 * rank * strips) / 64 * 64).max(64);
        let outputs: usize = products.iter().map(Product::outputs).sum();
        Way { most_rows, is_wide: outputs * rows.min(most_rows) >= WIDE * multiprocessors }
    }
}

/// [`backward`] in some way.
pub fn backward_by(
    rec: &mut Recorder,
    u: View,
    products: &[Product],
    scale: f32,
    rows: usize,
    packed: &Packed,
    way: Way,
) {
    let kernel = Kernel::of(products[0].rank(), way.is_wide);
    let each = rows.div_ceil(rows.div_ceil(way.most_rows)).next_multiple_of(64);
    for first in (0..rows).step_by(each) {
        let some = Rows { first, count: each.min(rows - first) };
        of_rows(rec, &kernel, u, products, scale, some, packed);
    }
}

/// Some of the tokens.
#[derive(Clone, Copy)]
struct Rows {
    /// The first of them, a multiple of 64.
    first: usize,
    count: usize,
}

/// The parts of the sums of a launch.
struct Parts {
    /// Strips of outputs.
    strips: usize,
    /// The strip behind those of each product.
    ends: [u32; MOST],
    /// Parts of the tokens.
    count: usize,
    rows: usize,
    /// Rows of the sums of `u` of a strip.
    padded_rows: usize,
}

impl Parts {
    fn of(kernel: &Kernel, products: &[Product], rows: usize, multiprocessors: usize) -> Parts {
        let mut strips = 0;
        let ends = per_product(products, |product| {
            strips += product.outputs().div_ceil(kernel.strip());
            strips as u32
        });
        let chunks = rows.div_ceil(kernel.chunk);
        let each = chunks.div_ceil((multiprocessors / strips).clamp(1, chunks));
        let (rows, padded_rows) = (kernel.chunk * each, kernel.chunk * chunks);
        Parts { strips, ends, count: chunks.div_ceil(each), rows, padded_rows }
    }
}

fn of_rows(
    rec: &mut Recorder,
    kernel: &Kernel,
    u: View,
    products: &[Product],
    scale: f32,
    rows: Rows,
    packed: &Packed,
) {
    let (rank, strip) = (products[0].rank(), kernel.strip());
    let parts = Parts::of(kernel, products, rows.count, rec.gpu().multiprocessors());
    let [of_u, of_b] = [parts.padded_rows, parts.count * strip].map(|each| 4 * rank * parts.strips * each);
    let [u_blocks, b_blocks] = [products.len() * rows.count.next_multiple_of(16), parts.strips * strip]
        .map(|each| (each * rank / 4).div_ceil(256));
    let numbers = Numbers {
        columns: per_product(products, |product| product.outputs() as u32),
        tiles: per_product(products, |product| product.member.dy.tiles()),
        ends: parts.ends,
        count: products.len() as u32,
        strip: strip as u32,
        rows: rows.count as u32,
        padded_rows: parts.padded_rows as u32,
        z_stride: products[0].gradient.thin.rows.stride as u32,
        u_stride: u.rows.stride as u32,
        packed_tiles: packed.tiles(),
        part_rows: parts.rows as u32,
        parts: parts.count as u32,
        u_blocks: u_blocks as u32,
        scale,
    };
    let outputs: usize = products.iter().map(Product::outputs).sum();
    let sums = Launch {
        name: "lora/cuda.backward",
        entry: Entry { text: BACKWARD, name: kernel.name },
        buffers: buffers(rec, u, products, rows.first, packed, of_u as u64),
        numbers: bytemuck::bytes_of(&numbers).to_vec(),
        blocks: [parts.strips as u32, parts.count as u32, 1],
        threads: 32 * WARPS as u32,
        shared: kernel.shared(rank) as u32,
        bytes: (2 * rows.count * outputs + of_u + of_b) as u64,
    };
    let finish = Launch {
        name: "lora/cuda.finish",
        entry: Entry { text: BACKWARD, name: kernel.finish },
        buffers: sums.buffers.clone(),
        numbers: sums.numbers.clone(),
        blocks: [(u_blocks + b_blocks) as u32, 1, 1],
        threads: 256,
        shared: 0,
        bytes: (of_u + of_b + 6 * products.len() * rows.count * rank + 8 * outputs * rank) as u64,
    };
    rec.launch(sums);
    rec.launch(finish);
}

/// A value of each product, and the last one's again up to [`MOST`].
fn per_product<T: Copy>(products: &[Product], value: impl FnMut(&Product) -> T) -> [T; MOST] {
    let values: Vec<T> = products.iter().map(value).collect();
    std::array::from_fn(|i| values[i.min(values.len() - 1)])
}

/// The operands and results from row `first` on, and the scratch, where the sums of dB begin at byte `of_b`.
fn buffers(
    rec: &Recorder,
    u: View,
    products: &[Product],
    first: usize,
    packed: &Packed,
    of_b: u64,
) -> Vec<(wgpu::Buffer, u64)> {
    let (u_rows, packed) = (u.rows.below(first), packed.below(first));
    let of_product = |product: &Product| {
        let Product { member: Member { dy, b, offset }, gradient } = product;
        let dy = dy.below(first);
        let (z, db) = (gradient.thin, gradient.matrix);
        [
            dy.place(0),
            dy.factors_place(),
            (b.buffer.clone(), b.offset),
            z.rows.below(first).from(z.offset).place(),
            u_rows.from(u.offset + offset).place(),
            packed.place(*offset),
            (db.buffer.clone(), db.offset),
        ]
    };
    let last = products.len() - 1;
    let operands = (0..MOST).flat_map(|i| of_product(&products[i.min(last)]));
    let scratch = [0, of_b].map(|start| (rec.gpu().partial_sums().clone(), start));
    operands.chain(scratch).collect()
}
