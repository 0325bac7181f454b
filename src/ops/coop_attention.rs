//! [`super::attention`] on cooperative matrices, for the head sizes of [`supports`].

use super::attention::Attention;
use super::coop_attention_kv::{self, BLOCK, Left, Product};
use super::pack::{Packed, packed_bytes};
use super::{Rows, attention_rows};
use crate::gpu::{Binding, Gpu, GpuError, Kernel, Recorder};

/// Queries of a block.
const QUERIES: usize = 64;

/// Twin of `Params` in shaders/coop_attention.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    tiles: u32,
    heads: u32,
    kv_heads: u32,
    window: u32,
    first_key: u32,
    end_key: u32,
    blocks: u32,
    scale: f32,
    k_scale: f32,
}

/// Whether the kernels take heads of this size: what Gemma has, and small models.
pub fn supports(head_size: usize) -> bool {
    [32, 64, 128, 256, 512].contains(&head_size)
}

/// The sizes of the shader for heads of `head_size`, one of those that it [`supports`].
pub fn sizes(head_size: usize) -> [(&'static str, u32); 12] {
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
        ("AROWS", rows),
        ("BCOLS", columns),
        ("PAIRS", split - 1),
        ("STORED", rows / split),
        ("SCORES", (QUERIES * (keys / 4 + 1)).max(80 * subgroups)),
        ("WEIGHTS", QUERIES * (keys / 4 + 2)),
    ]
    .map(|(name, n)| (name, n as u32))
}

/// Queries `[T, H·K]`, keys and values `[T, G·K]` as [`super::coop_heads`] leaves them.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    /// Queries.
    pub q: &'a Packed,
    /// Keys.
    pub k: &'a Packed,
    /// Values, not scaled.
    pub v: &'a Packed,
    /// By what the queries are scaled.
    pub q_scale: f32,
    /// By what the keys are scaled.
    pub k_scale: f32,
}

/// Scratch of backward, the same for all layers.
pub struct Scratch {
    dout: Packed,        // [T, H·K]
    rows: wgpu::Buffer,  // log-sum-exp, delta and unit [T, H, 4]
    units: wgpu::Buffer, // [H, T/64]
    left: Left,
}

impl Scratch {
    /// Room for `tokens` tokens of `heads` heads, `queries` columns in all, beside `left`.
    pub fn new(
        gpu: &Gpu,
        tokens: usize,
        queries: usize,
        heads: usize,
        left: Left,
    ) -> Result<Scratch, GpuError> {
        Ok(Scratch {
            dout: Packed::new(gpu, "packed attention gradient", tokens, queries)?,
            rows: gpu.buffer("attention rows", 16 * (tokens * heads) as u64)?,
            units: gpu.buffer("units of keys", 4 * (tokens.div_ceil(BLOCK) * heads) as u64)?,
            left,
        })
    }

    /// What [`Scratch::new`] takes.
    pub fn bytes(tokens: usize, queries: usize, heads: usize) -> u64 {
        let rows = 4 * tokens + 16 * tokens * heads + 4 * tokens.div_ceil(BLOCK) * heads;
        packed_bytes(tokens, queries) + rows as u64
    }

    /// [`Attention::backward`]; `dout` is scratch once it is read, as `dheads` is.
    pub fn backward(
        &self,
        rec: &mut Recorder,
        attention: &Attention,
        [dq, dk, dv]: [&Rows; 3],
        dheads: &Rows,
        dout: &Rows,
        operands: Operands,
        out: &Rows,
        lse: &Rows,
    ) {
        let queries = attention.heads * attention.head_size;
        let packed = self.dout.for_rows(attention.rows);
        packed.pack(rec, dout.all(), queries, attention.rows);
        let rows = |index| Binding { index, buffer: &self.rows, range: None };
        let units = |index| Binding { index, buffer: &self.units, range: None };
        attention_rows::forward(rec, rows(5), attention, [out, dout], &packed, lse);
        let blocks = attention.rows.div_ceil(BLOCK);
        let bounds = Binding { index: 5, buffer: attention.bounds, range: None };
        let of_units = [bounds, rows(7), units(9)];
        dispatch(rec, "key_units", attention, operands, Part::default(), &of_units, blocks);
        for keys in self.left.parts(attention) {
            let part = Part {
                first_key: (keys.first * BLOCK) as u32,
                end_key: (keys.end * BLOCK) as u32,
                blocks: keys.queries as u32,
            };
            let Operands { q, k, v, .. } = operands;
            let with =
                [q.bind(1), k.bind(2), v.bind(3), packed.bind(4), bounds, rows(7), dq.bind(8), units(9)];
            let with = [&with[..], &[self.left.weights.bind(10), self.left.gradients.bind(11)]].concat();
            dispatch(rec, "backward_q", attention, operands, part, &with, keys.seen_by(blocks));
            let Left { weights, gradients, .. } = &self.left;
            let of_values = Product { left: weights, x: &packed, scale: 1.0, result: dout };
            let of_keys = Product { left: gradients, x: q, scale: 1.0 / operands.q_scale, result: dheads };
            for product in [of_values, of_keys] {
                coop_attention_kv::backward(rec, attention, &keys, units(3), product);
            }
        }
        attention.sum_heads(rec, dk, dheads);
        attention.sum_heads(rec, dv, dout);
    }
}

/// [`Attention::forward`].
pub fn forward(rec: &mut Recorder, attention: &Attention, out: &Rows, lse: &Rows, operands: Operands) {
    let Operands { q, k, v, .. } = operands;
    let bounds = Binding { index: 5, buffer: attention.bounds, range: None };
    let with = [q.bind(1), k.bind(2), v.bind(3), bounds, lse.bind(6), out.bind(8)];
    let blocks = attention.rows.div_ceil(QUERIES);
    dispatch(rec, "forward", attention, operands, Part::default(), &with, blocks);
}

/// The keys of a call of backward; see `Params` of the shader.
#[derive(Default)]
struct Part {
    first_key: u32,
    end_key: u32,
    blocks: u32,
}

fn dispatch(
    rec: &mut Recorder,
    entry: &'static str,
    attention: &Attention,
    operands: Operands,
    part: Part,
    bindings: &[Binding],
    blocks: usize,
) {
    let Operands { q, q_scale, k_scale, .. } = operands;
    let params = Params {
        rows: attention.rows as u32,
        tiles: q.tiles(),
        heads: attention.heads as u32,
        kv_heads: attention.kv_heads as u32,
        window: attention.window.unwrap_or(0) as u32,
        first_key: part.first_key,
        end_key: part.end_key,
        blocks: part.blocks,
        scale: 1.0 / (q_scale * k_scale),
        k_scale: 1.0 / k_scale,
    };
    let kernel = Kernel::new("coop_attention", entry);
    let kernel = sizes(attention.head_size).into_iter().fold(kernel, |k, (name, n)| k.with_size(name, n));
    rec.dispatch(kernel, &params, bindings, [attention.heads as u32, blocks as u32, 1]);
}
