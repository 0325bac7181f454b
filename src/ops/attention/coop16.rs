//! [`Attention::forward`] on cooperative matrices of 16×16, for the head sizes that [`supports`] accepts.

use crate::gpu::{Binding, Kernel, Recorder};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::attention::{Attention, cap, cuda};
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

/// Whether the kernels take heads of this size: those of real models, and smaller ones for tests.
pub fn supports(head_size: usize) -> bool {
    [32, 64, 96, 128, 192, 256, 512].contains(&head_size)
}

/// The shader's sizes for heads of `head_size`, which must be [supported](supports). Those of the result's storage come on top.
pub fn sizes(head_size: usize) -> [(&'static str, u32); 13] {
    // With the largest heads, registers and not workgroup memory bound the workgroups on a multiprocessor.
    let keys = if head_size == 512 { 64 } else { 32 };
    // Four for heads of 128: on an H200, two take 1.7 times as long. Three would not divide a block of scores.
    let subgroups = if [128, 192].contains(&head_size) { 4 } else { (head_size / 64).max(2) };
    let tiles = keys / 16;
    let share = 4 * tiles / subgroups; // a subgroup's matrices in a block of scores
    let split = if share < 4 { 2 } else { 1 };
    let rows = 2.min(split * share);
    let columns = split * share / rows;
    let depth = head_size / 16;
    let ahead = (1..=4).rev().find(|ahead| (depth / split).is_multiple_of(*ahead)).unwrap_or(1);
    [
        ("SUBGROUPS", subgroups),
        ("THREADS", 32 * subgroups),
        ("DEPTH", depth),
        ("OUT", head_size / subgroups / 16),
        ("KEYS", keys),
        ("SPLIT", split),
        ("AHEAD", ahead), // loads at once
        ("AROWS", rows),
        ("BCOLS", columns),
        ("PAIRS", split - 1),
        ("STORED", rows / split),
        ("SCORES", (QUERIES * (keys / 4 + 1)).max(80 * subgroups)),
        ("WEIGHTS", QUERIES * (keys / 4 + 2)),
    ]
    .map(|(name, n)| (name, n as u32))
}

/// Queries `[T, H·K]`, keys and values `[T, G·K]` from [`crate::ops::heads::coop16`].
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    /// Queries.
    pub q: &'a Packed,
    /// Keys.
    pub k: &'a Packed,
    /// Values, unscaled.
    pub v: &'a Packed,
}

impl<'a> Operands<'a> {
    /// The heads' tiles; `None` where heads are stored in f32.
    pub fn of(q: &'a Act, k: &'a Act, v: &'a Act) -> Option<Operands<'a>> {
        Some(Operands { q: q.tiles()?, k: k.tiles()?, v: v.tiles()? })
    }
}

/// [`Attention::forward`]; `out` may be stored as tiles. They are not scaled: an output lies in the range of the values. CUDA computes it
/// where it has kernels for these heads.
pub fn forward(rec: &mut Recorder, attention: &Attention, out: &Act, lse: &Rows, operands: Operands) {
    if cuda::supports_forward(rec.gpu(), attention.head_size, attention.softcap) {
        return cuda::forward(rec, attention, out, lse, operands);
    }
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
    bindings.extend(out.bind(6, 7));
    bindings.extend(attention.sinks.map(|buffer| Binding { index: 8, buffer, range: None }));
    let kernel = Kernel::new("attention/coop16", "forward");
    let kernel = kernel.with_sizes(sizes(attention.head_size)).with_sizes(out.sizes());
    let kernel = kernel.with_size("SINKS", u32::from(attention.sinks.is_some()));
    let kernel = kernel.with_size("CAP", cap(attention.softcap));
    let groups = [attention.heads as u32, attention.rows.div_ceil(QUERIES) as u32, 1];
    rec.dispatch(kernel, &params, &bindings, groups);
}
