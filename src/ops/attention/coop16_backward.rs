//! [`Attention::backward`] on cooperative matrices of 16×16: weights and score gradients of some queries and keys at a time, then their
//! products. CUDA needs no memory for them, where it has kernels for these heads.

use crate::gpu::{Binding, Gpu, GpuError, Kernel, Recorder};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::attention::coop16::Operands;
use crate::ops::attention::coop16_rows as attention_rows;
use crate::ops::attention::{Attention, cap, cuda};
use crate::ops::pack::{Packed, packed_bytes};

/// Queries or keys per block.
const BLOCK: usize = 128;

/// Bytes of the weights of a block of queries against a block of keys.
const BLOCK_BYTES: u64 = 2 * (BLOCK * BLOCK) as u64;

/// Fewest blocks of keys in a part, if there are as many: fewer leave much of the device idle.
const LEAST_BLOCKS: usize = 16;

/// Most columns of a head that a product's workgroup takes, in matrices.
const TILES: usize = 8;

/// Twin of `Params` in shaders/common/attention_part.wgsl.
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
    offset: u32,
    blocks: u32,
    scale: f32,
}

/// Scratch of backward, which all layers share.
pub struct Scratch {
    dout: Packed,        // [T, H·K]
    rows: wgpu::Buffer,  // log-sum-exp and delta [T, H, 2], where T is odd of one token more
    units: wgpu::Buffer, // [T/128]
    scores: ScoreScratch,
}

impl Scratch {
    /// Scratch for `tokens` tokens of `heads` heads with `queries` columns in total, beside `left`.
    pub fn new(
        gpu: &Gpu,
        tokens: usize,
        queries: usize,
        heads: usize,
        scores: ScoreScratch,
    ) -> Result<Scratch, GpuError> {
        Ok(Scratch {
            dout: Packed::new(gpu, "packed attention gradient", tokens, queries)?,
            rows: gpu.buffer("attention rows", 8 * (tokens.next_multiple_of(2) * heads) as u64)?,
            units: gpu.buffer("units of keys", 4 * tokens.div_ceil(BLOCK) as u64)?,
            scores,
        })
    }

    /// Bytes that [`Scratch::new`] allocates.
    pub fn bytes(tokens: usize, queries: usize, heads: usize) -> u64 {
        let rows = 4 * tokens + 8 * tokens.next_multiple_of(2) * heads + 4 * tokens.div_ceil(BLOCK);
        packed_bytes(tokens, queries) + rows as u64
    }

    /// [`Attention::backward`]. `dout` is scratch once it is read, as is `dheads`; `halves` are its f16 blocks where a product left it in
    /// these ([`super::gradient_of`]).
    pub fn backward(
        &self,
        rec: &mut Recorder,
        attention: &Attention,
        [dq, dk, dv]: [&Rows; 3],
        dheads: &Rows,
        (dout, halves): (&Rows, Option<Packed>),
        operands: Operands,
        out: &Act,
        lse: &Rows,
    ) {
        // Longer than 60 lines: the kernels of one pass, with their parameters and bindings.
        let Operands { q, k, v } = operands;
        let Attention { q_scale, k_scale, .. } = *attention;
        let packed = halves.unwrap_or_else(|| {
            let packed = self.dout.for_rows(attention.rows);
            packed.pack(rec, dout.all(), attention.heads * attention.head_size, attention.rows);
            packed
        });
        let rows = Binding { index: 6, buffer: &self.rows, range: None };
        if cuda::supports(rec.gpu(), attention.head_size, attention.softcap) {
            let gradients = [dq, dk, dv];
            return cuda::backward(rec, attention, gradients, operands, &packed, (out, lse), &self.rows);
        }
        attention_rows::forward(rec, rows, attention, out, dout, &packed, lse);
        let units = Binding { index: 4, buffer: &self.units, range: None };
        let bounds = |index| Binding { index, buffer: attention.bounds, range: None };
        let params = Params {
            rows: attention.rows as u32,
            tiles: q.tiles(),
            heads: attention.heads as u32,
            kv_heads: attention.kv_heads as u32,
            window: attention.window.unwrap_or(0) as u32,
            first_key: 0,
            end_key: 0,
            offset: 0,
            blocks: 0,
            scale: 1.0 / (q_scale * k_scale),
        };
        let kernel = |name, entry| Kernel::new(name, entry).with_sizes(sizes(attention.head_size));
        let product = |entry| kernel("attention/coop16_product", entry);
        let all = attention.rows.div_ceil(BLOCK);
        let bindings = [bounds(2), packed.bind_factors(3), units];
        rec.dispatch(product("key_units"), &params, &bindings, [all as u32, 1, 1]);

        let ScoreScratch { weights, gradients, .. } = &self.scores;
        let columns = attention.head_size / 16 / tiles(attention.head_size);
        for part in self.scores.parts(attention) {
            let Part { first, end, offset, blocks } = part;
            let params = Params {
                first_key: first as u32,
                end_key: end as u32,
                offset: offset as u32,
                blocks: blocks as u32,
                ..params
            };
            let bindings = [q.bind(1), k.bind(2), v.bind(3), packed.bind(4), bounds(5), rows];
            let bindings = [&bindings[..], &[weights.bind(7), gradients.bind(8)]].concat();
            let groups = [attention.heads, blocks, end - first].map(|n| n as u32);
            let scores = kernel("attention/coop16_scores", "backward");
            let scores = scores.with_size("CAP", cap(attention.softcap));
            rec.dispatch(scores, &params, &bindings, groups);
            let of_queries = ("queries", gradients, k, 1.0 / k_scale, dq, part.queries(all));
            let of_values = ("keys", weights, &packed, 1.0, dout, end - first);
            let of_keys = ("keys", gradients, q, 1.0 / q_scale, dheads, end - first);
            for (entry, left, x, scale, result, blocks) in [of_queries, of_values, of_keys] {
                let mut bindings =
                    vec![x.bind(1), bounds(2), packed.bind_factors(3), left.bind(5), result.bind(6)];
                bindings.extend((entry == "keys").then_some(units));
                let groups = [attention.heads, columns, blocks].map(|n| n as u32);
                rec.dispatch(product(entry), &Params { scale, ..params }, &bindings, groups);
            }
        }
        attention.sum_heads(rec, dk, dheads);
        attention.sum_heads(rec, dv, dout);
    }
}

/// Memory for weights and score gradients, of as many queries and keys at a time as fit.
#[derive(Clone)]
pub struct ScoreScratch {
    weights: Half,
    gradients: Half,
    bytes: u64, // of each buffer
}

#[derive(Clone)]
struct Half {
    buffer: wgpu::Buffer,
    start: u64, // a multiple of 256
    bytes: u64,
}

impl Half {
    fn bind(&self, index: u32) -> Binding<'_> {
        Binding { index, buffer: &self.buffer, range: Some((self.start, self.bytes)) }
    }
}

impl ScoreScratch {
    /// Memory of its own, `bytes` bytes in all.
    pub fn new(gpu: &Gpu, bytes: u64) -> Result<ScoreScratch, GpuError> {
        let rows = Rows { buffer: gpu.buffer("attention weights", bytes)?, stride: 0, start: 0 };
        Ok(ScoreScratch::within([&rows, &rows], [0, bytes / 512 * 256], bytes / 2))
    }

    /// `bytes` bytes in each of two buffers, or twice in the same one, from the bytes `starts` (multiples of 256) on.
    pub fn within(rows: [&Rows; 2], starts: [u64; 2], bytes: u64) -> ScoreScratch {
        let bytes = bytes / 256 * 256;
        let half = |i: usize| Half { buffer: rows[i].buffer.clone(), start: starts[i], bytes };
        ScoreScratch { weights: half(0), gradients: half(1), bytes }
    }

    /// Bytes that keep the device busy, for `heads` heads over `tokens` tokens that at most `reach` queries see.
    pub fn least_bytes(heads: usize, tokens: usize, reach: usize) -> u64 {
        let least = |blocks: usize| blocks.min(LEAST_BLOCKS);
        2 * BLOCK_BYTES * (heads * least(tokens.div_ceil(BLOCK)) * least(queries(tokens, 0, reach))) as u64
    }

    fn parts(&self, attention: &Attention) -> Vec<Part> {
        parts(self.bytes, attention.heads, attention.rows, attention.reach())
    }
}

/// Some blocks of keys, each with the same number of blocks of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    first: usize,  // block of keys
    end: usize,    // one past the last
    offset: usize, // from a block of keys to its first block of queries
    blocks: usize, // blocks of queries
}

impl Part {
    /// Blocks of queries from the first on, of `all` that there are.
    fn queries(&self, all: usize) -> usize {
        (self.end - self.first - 1 + self.blocks).min(all.saturating_sub(self.first + self.offset))
    }
}

/// Number of blocks of queries that see any key of block `key`, if at most `reach` queries see a key.
fn queries(tokens: usize, key: usize, reach: usize) -> usize {
    // The last queries see the last key of the block.
    let reached = (BLOCK - 2 + reach.max(1)) / BLOCK + 1;
    reached.min(tokens.div_ceil(BLOCK) - key)
}

/// Splits all pairs that are seen into as few parts as the memory allows. A part has all queries of some keys, or, where these would be
/// too few keys, some of the queries.
fn parts(bytes: u64, heads: usize, tokens: usize, reach: usize) -> Vec<Part> {
    let all = tokens.div_ceil(BLOCK);
    let room = (bytes / (BLOCK_BYTES * heads as u64)) as usize;
    assert!(room > 0, "the plan makes room for a block");
    let (mut parts, mut first) = (Vec::new(), 0);
    while first < all {
        let queries = queries(tokens, first, reach);
        let keys = (room / queries).max(LEAST_BLOCKS.min(room)).min(all - first);
        let (end, blocks) = (first + keys, queries.min(room / keys));
        let offsets = (0..queries).step_by(blocks);
        parts.extend(offsets.map(|offset| Part { first, end, offset, blocks: blocks.min(queries - offset) }));
        first = end;
    }
    parts
}

/// Matrices along the columns of a workgroup: as many as divide those of a head.
fn tiles(head_size: usize) -> usize {
    (1..=TILES).rev().find(|tiles| (head_size / 16).is_multiple_of(*tiles)).unwrap_or(1)
}

/// The shaders' sizes for heads of `head_size`.
pub fn sizes(head_size: usize) -> [(&'static str, u32); 3] {
    let tiles = tiles(head_size);
    [("DEPTH", head_size / 16), ("TILES", tiles), ("STAGED", 32 * (4 * tiles + 2))]
        .map(|(name, n)| (name, n as u32))
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, BLOCK_BYTES, LEAST_BLOCKS, ScoreScratch, parts, queries};

    #[test]
    fn every_block_is_taken_once_and_nothing_is_larger_than_its_room() {
        for (tokens, reach) in
            [(1, 1), (128, 128), (129, 1), (8192, 8192), (8192, 512), (8192, 513), (5000, 2048)]
        {
            for heads in [1, 8] {
                let least = ScoreScratch::least_bytes(heads, tokens, reach);
                for bytes in [BLOCK_BYTES * heads as u64, least / 2, least, 3 * least] {
                    let parts = parts(bytes, heads, tokens, reach);
                    let all = tokens.div_ceil(BLOCK);
                    let mut taken = vec![vec![0; all]; all];
                    for p in &parts {
                        assert!(BLOCK_BYTES * (heads * p.blocks * (p.end - p.first)) as u64 <= bytes);
                        for (key, taken) in taken.iter_mut().enumerate().take(p.end).skip(p.first) {
                            for query in (key + p.offset..key + p.offset + p.blocks).filter(|&q| q < all) {
                                assert!(query < p.first + p.offset + p.queries(all));
                                taken[query] += 1;
                            }
                        }
                    }
                    for (key, taken) in taken.iter().enumerate() {
                        let seen = key..key + queries(tokens, key, reach);
                        assert!(
                            (0..all).all(|q| taken[q] == usize::from(seen.contains(&q))),
                            "{tokens} {reach}"
                        );
                    }
                    if bytes >= least / 2 {
                        let whole =
                            |p: &super::Part| p.end == all || p.end - p.first >= LEAST_BLOCKS.min(all);
                        assert!(parts.iter().all(whole));
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_of_queries_reach_as_far_as_the_last_key_is_seen() {
        for (tokens, reach) in [(2000, 1), (2000, 2), (2000, 128), (2000, 129), (2000, 130), (2000, 2000)] {
            for key in 0..16 {
                let last = (key * BLOCK + BLOCK - 1).min(tokens - 1);
                let seen_by = (last + reach - 1).min(tokens - 1);
                assert!(queries(tokens, key, reach) > seen_by / BLOCK - key, "{tokens} {reach} {key}");
            }
        }
    }
}
