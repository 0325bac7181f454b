//! [`Attention::forward`] on cooperative matrices, for the head sizes of [`supports`].

use crate::gpu::{Binding, Kernel, Recorder};
use crate::ops::Rows;
use crate::ops::attention::Attention;
use crate::ops::pack::Packed;

/// Queries of a block.
const QUERIES: usize = 64;

/// Twin of `Params` in shaders/attention/coop16.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    tiles: u32,
    heads: u32,
    kv_heads: u32,
    window: u32,
    scale: f32,
}

/// Whether the kernels take heads of this size: those of published models, and of small ones.
pub fn supports(head_size: usize) -> bool {
    [32, 64, 128, 256, 512].contains(&head_size)
}

/// The sizes of the shader for heads of `head_size`, one of those that it [`supports`]; it takes those of its result too.
pub fn sizes(head_size: usize) -> [(&'static str, u32); 13] {
    // With the largest heads registers bound the workgroups on a multiprocessor, not their memory.
    let keys = if head_size == 512 { 64 } else { 32 };
    let subgroups = (head_size / 64).max(2);
    let tiles = keys / 16;
    let share = 4 * tiles / subgroups; // of the matrices of a block of scores
    let split = if share < 4 { 2 } else { 1 };
    let rows = 2.min(split * share);
    let columns = split * share / rows;
    [
        ("SUBGROUPS", subgroups),
        ("THREADS", 32 * subgroups),
        ("DEPTH", head_size / 16),
        ("OUT", head_size / subgroups / 16),
        ("KEYS", keys),
        ("SPLIT", split),
        ("AHEAD", 4.min(head_size / 16 / split)), // loads at once
        ("AROWS", rows),
        ("BCOLS", columns),
        ("PAIRS", split - 1),
        ("STORED", rows / split),
        ("SCORES", (QUERIES * (keys / 4 + 1)).max(80 * subgroups)),
        ("WEIGHTS", QUERIES * (keys / 4 + 2)),
    ]
    .map(|(name, n)| (name, n as u32))
}

/// Queries `[T, H·K]`, keys and values `[T, G·K]` as [`crate::ops::heads::coop16`] leaves them.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    /// Queries.
    pub q: &'a Packed,
    /// Keys.
    pub k: &'a Packed,
    /// Values, not scaled.
    pub v: &'a Packed,
}

/// [`Attention::forward`]; `out` may come packed, then it is not scaled: it lies among the values.
pub fn forward(rec: &mut Recorder, attention: &Attention, out: &Rows, lse: &Rows, operands: Operands) {
    let Operands { q, k, v } = operands;
    let params = Params {
        rows: attention.rows as u32,
        tiles: q.tiles(),
        heads: attention.heads as u32,
        kv_heads: attention.kv_heads as u32,
        window: attention.window.unwrap_or(0) as u32,
        scale: 1.0 / (attention.q_scale * attention.k_scale),
    };
    let bounds = Binding { index: 4, buffer: attention.bounds, range: None };
    let mut bindings = vec![q.bind(1), k.bind(2), v.bind(3), bounds, lse.bind(5)];
    bindings.extend(out.bind_either(6, 7));
    let kernel = Kernel::new("attention/coop16", "forward");
    let kernel = kernel.with_sizes(sizes(attention.head_size)).with_sizes(out.sizes());
    let groups = [attention.heads as u32, attention.rows.div_ceil(QUERIES) as u32, 1];
    rec.dispatch(kernel, &params, &bindings, groups);
}
