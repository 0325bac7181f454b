//! [`super::attention`] on cooperative matrices, for the head sizes of [`supports`].

use super::Rows;
use super::attention::Attention;
use super::pack::{Packed, packed_bytes, tiles};
use crate::gpu::{Binding, Gpu, GpuError, Kernel, Recorder};

/// Queries, and keys, of a block.
const BLOCK: usize = 64;

/// Twin of `Params` in shaders/coop_attention.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    tiles: u32,
    heads: u32,
    kv_heads: u32,
    window: u32,
    factor_stride: u32,
}

/// Whether the kernels take heads of this size: what Gemma has, and small models.
pub fn supports(head_size: usize) -> bool {
    [64, 128, 256, 512].contains(&head_size)
}

/// The sizes of the shader for heads of `head_size`, one of those that it [`supports`].
pub fn sizes(head_size: usize) -> [(&'static str, u32); 6] {
    let subgroups = (head_size / 64).max(2);
    let share = 16 / subgroups; // matrices of the 4×4 of a block of scores
    [
        ("SUBGROUPS", subgroups as u32),
        ("THREADS", 32 * subgroups as u32),
        ("DEPTH", (head_size / 16) as u32),
        ("OUT", (head_size / subgroups / 16) as u32),
        ("AROWS", (share / 4).max(1) as u32),
        ("BCOLS", share.min(4) as u32),
    ]
}

/// Scratch for the packed operands of one layer's attention.
pub struct Operands {
    q: Packed,
    k: Packed,
    v: Packed,
    dout: Packed,
    factors: wgpu::Buffer, // of q, k, v, dout [4, T]
    tokens: usize,
}

impl Operands {
    /// Room for `tokens` tokens, `queries` = H·K and `keys` = G·K columns.
    pub fn new(gpu: &Gpu, tokens: usize, queries: usize, keys: usize) -> Result<Operands, GpuError> {
        let factors = gpu.buffer("attention factors", 16 * tokens as u64)?;
        let packed = |label: &str, cols: usize, i: usize| {
            Packed::with_factors(gpu, label, tokens, cols, factors.clone(), i * tokens)
        };
        Ok(Operands {
            q: packed("packed queries", queries, 0)?,
            k: packed("packed keys", keys, 1)?,
            v: packed("packed values", keys, 2)?,
            dout: packed("packed attention gradient", queries, 3)?,
            factors,
            tokens,
        })
    }

    /// What [`Operands::new`] takes.
    pub fn bytes(tokens: usize, queries: usize, keys: usize) -> u64 {
        2 * packed_bytes(tokens, queries) + 2 * packed_bytes(tokens, keys) + 16 * tokens as u64
    }

    fn pack(&self, rec: &mut Recorder, attention: &Attention, [q, k, v]: [&Rows; 3]) {
        let (queries, keys) =
            (attention.heads * attention.head_size, attention.kv_heads * attention.head_size);
        self.q.pack(rec, q.all(), queries, attention.rows);
        self.k.pack(rec, k.all(), keys, attention.rows);
        self.v.pack(rec, v.all(), keys, attention.rows);
    }

    fn dispatch(&self, rec: &mut Recorder, entry: &'static str, attention: &Attention, bindings: &[Binding]) {
        let params = Params {
            rows: attention.rows as u32,
            tiles: tiles(attention.rows),
            heads: attention.heads as u32,
            kv_heads: attention.kv_heads as u32,
            window: attention.window.unwrap_or(0) as u32,
            factor_stride: self.tokens as u32,
        };
        let kernel = Kernel::new("coop_attention", entry);
        let kernel = sizes(attention.head_size).into_iter().fold(kernel, |k, (name, n)| k.with_size(name, n));
        let bounds = Binding { index: 5, buffer: attention.bounds, range: None };
        let factors = Binding { index: 6, buffer: &self.factors, range: None };
        let all = [&[self.q.bind(1), self.k.bind(2), bounds, factors], bindings].concat();
        let blocks = attention.rows.div_ceil(BLOCK) as u32;
        rec.dispatch(kernel, &params, &all, [blocks, attention.heads as u32, 1]);
    }

    /// [`Attention::forward`].
    pub fn forward(
        &self,
        rec: &mut Recorder,
        attention: &Attention,
        out: &Rows,
        lse: &Rows,
        qkv: [&Rows; 3],
    ) {
        self.pack(rec, attention, qkv);
        self.dispatch(rec, "forward", attention, &[self.v.bind(3), lse.bind(7), out.bind(9)]);
    }

    /// [`Attention::backward`].
    pub fn backward(
        &self,
        rec: &mut Recorder,
        attention: &Attention,
        [dq, dk, dv]: [&Rows; 3],
        [delta, dheads]: [&Rows; 2],
        dout: &Rows,
        qkv: [&Rows; 3],
        out: &Rows,
        lse: &Rows,
    ) {
        attention.delta(rec, delta, dout, out);
        self.pack(rec, attention, qkv);
        self.dout.pack(rec, dout.all(), attention.heads * attention.head_size, attention.rows);
        let (v, dout, lse, delta) = (self.v.bind(3), self.dout.bind(4), lse.bind(7), delta.bind(8));
        self.dispatch(rec, "backward_q", attention, &[v, dout, lse, delta, dq.bind(9)]);
        self.dispatch(rec, "backward_k", attention, &[v, dout, lse, delta, dheads.bind(9)]);
        attention.sum_heads(rec, dk, dheads);
        self.dispatch(rec, "backward_v", attention, &[dout, lse, dheads.bind(9)]);
        attention.sum_heads(rec, dv, dheads);
    }
}
