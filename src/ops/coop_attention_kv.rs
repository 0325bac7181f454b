//! The gradients of keys and values, from what [`super::coop_attention`] leaves of its weights and of their gradients.

use super::Rows;
use super::attention::Attention;
use super::pack::Packed;
use crate::gpu::{Binding, Gpu, GpuError, Kernel, Recorder};

/// Queries or keys of a block.
pub const BLOCK: usize = 64;

/// Bytes of the weights of a block of queries against one of keys.
const BLOCK_BYTES: u64 = 2 * (BLOCK * BLOCK) as u64;

/// Blocks of keys that a call should take at least, where there is no other memory to use: fewer leave much of the device idle.
const LEAST_BLOCKS: usize = 4;

/// Columns of a head that a workgroup takes, as matrices.
const TILES: usize = 8;

/// Twin of `Params` in shaders/coop_attention_kv.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    tiles: u32,
    heads: u32,
    window: u32,
    first_key: u32,
    blocks: u32,
    scale: f32,
}

/// Memory in which weights and their gradients are left, of as many keys at a time as it holds.
#[derive(Clone)]
pub struct Left {
    /// Weights.
    pub weights: Half,
    /// Their gradients.
    pub gradients: Half,
    bytes: u64, // of each
}

/// One half of it.
#[derive(Clone)]
pub struct Half {
    buffer: wgpu::Buffer,
    start: u64, // a multiple of 256
    bytes: u64,
}

impl Half {
    /// The memory at binding `index`.
    pub fn bind(&self, index: u32) -> Binding<'_> {
        Binding { index, buffer: &self.buffer, range: Some((self.start, self.bytes)) }
    }
}

/// Keys that one call takes, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// First block.
    pub first: usize,
    /// One past the last.
    pub end: usize,
    /// Blocks of queries that there is room for beside each.
    pub queries: usize,
}

impl Keys {
    /// Blocks of queries, of `blocks` in all, from the first block of keys on, up to the last that sees any.
    pub fn seen_by(&self, blocks: usize) -> usize {
        (self.end - self.first - 1 + self.queries).min(blocks - self.first)
    }
}

impl Left {
    /// Memory of its own, `bytes` bytes in all.
    pub fn new(gpu: &Gpu, bytes: u64) -> Result<Left, GpuError> {
        let rows =
            Rows { buffer: gpu.buffer("attention weights", bytes)?, stride: 0, start: 0, packed: None };
        Ok(Left::within([&rows, &rows], [0, bytes / 512 * 256], bytes / 2))
    }

    /// `bytes` bytes in each of two buffers, or twice in the same one, from the bytes `starts` (multiples of 256) on.
    pub fn within(rows: [&Rows; 2], starts: [u64; 2], bytes: u64) -> Left {
        let bytes = bytes / 256 * 256;
        let half = |i: usize| Half { buffer: rows[i].buffer.clone(), start: starts[i], bytes };
        Left { weights: half(0), gradients: half(1), bytes }
    }

    /// Bytes that keep the device busy: for `heads` heads over `tokens` tokens, each seen by at most `reach` queries.
    pub fn least_bytes(heads: usize, tokens: usize, reach: usize) -> u64 {
        let keys = tokens.div_ceil(BLOCK).min(LEAST_BLOCKS);
        2 * BLOCK_BYTES * (heads * keys * queries(tokens, 0, reach)) as u64
    }

    /// All keys of a pass, in as few calls as there is room for.
    pub fn parts(&self, attention: &Attention) -> Vec<Keys> {
        parts(self.bytes, attention.heads, attention.rows, attention.reach())
    }
}

/// Blocks of queries that see any key of block `key`, where at most `reach` queries see one.
fn queries(tokens: usize, key: usize, reach: usize) -> usize {
    // The last key of the block is seen by the most of them.
    let reached = (BLOCK - 2 + reach.max(1)) / BLOCK + 1;
    reached.min(tokens.div_ceil(BLOCK) - key)
}

fn parts(bytes: u64, heads: usize, tokens: usize, reach: usize) -> Vec<Keys> {
    let blocks = tokens.div_ceil(BLOCK);
    let (mut parts, mut first) = (Vec::new(), 0);
    while first < blocks {
        let queries = queries(tokens, first, reach);
        let of_block = BLOCK_BYTES * (heads * queries) as u64;
        let room = (bytes / of_block) as usize;
        assert!(room > 0, "the plan makes room for a block of keys");
        let end = blocks.min(first + room);
        parts.push(Keys { first, end, queries });
        first = end;
    }
    parts
}

/// What is left, times `x`.
pub struct Product<'a> {
    /// Weights or gradients.
    pub left: &'a Half,
    /// `[T, H·K]`.
    pub x: &'a Packed,
    /// What undoes the scaling of `x`, where it is not by row.
    pub scale: f32,
    /// `[T, H, K]`.
    pub result: &'a Rows,
}

/// The result of `product` for the keys `keys`, by query head; `units` is `[H, T/64]`.
pub fn backward(rec: &mut Recorder, attention: &Attention, keys: &Keys, units: Binding, product: Product) {
    let Product { left, x, scale, result } = product;
    let params = Params {
        rows: attention.rows as u32,
        tiles: x.tiles(),
        heads: attention.heads as u32,
        window: attention.window.unwrap_or(0) as u32,
        first_key: (keys.first * BLOCK) as u32,
        blocks: keys.queries as u32,
        scale,
    };
    let bounds = Binding { index: 2, buffer: attention.bounds, range: None };
    let bindings = [x.bind(1), bounds, units, left.bind(4), result.bind(5)];
    let kernel = Kernel::new("coop_attention_kv", "backward");
    let kernel = sizes(attention.head_size).into_iter().fold(kernel, |k, (name, n)| k.with_size(name, n));
    let columns = attention.head_size / 16 / tiles(attention.head_size);
    let workgroups = [attention.heads, columns, keys.end - keys.first].map(|n| n as u32);
    rec.dispatch(kernel, &params, &bindings, workgroups);
}

/// Matrices over the columns of a workgroup.
fn tiles(head_size: usize) -> usize {
    TILES.min(head_size / 16)
}

/// The sizes of the shader for heads of `head_size`.
pub fn sizes(head_size: usize) -> [(&'static str, u32); 4] {
    let tiles = tiles(head_size);
    [("DEPTH", head_size / 16), ("TILES", tiles), ("OUT", tiles / 2), ("STAGED", 32 * (4 * tiles + 2))]
        .map(|(name, n)| (name, n as u32))
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_BYTES, Keys, Left, parts, queries};

    #[test]
    fn every_key_is_taken_once_and_nothing_is_larger_than_its_room() {
        for (tokens, reach) in
            [(1, 1), (64, 64), (65, 1), (8192, 8192), (8192, 512), (8192, 513), (5000, 2048)]
        {
            for heads in [1, 8] {
                let least = Left::least_bytes(heads, tokens, reach);
                for bytes in [BLOCK_BYTES * (heads * queries(tokens, 0, reach)) as u64, least, 3 * least] {
                    let parts = parts(bytes, heads, tokens, reach);
                    assert_eq!(parts[0].first, 0);
                    assert_eq!(parts.last().map(|p| p.end), Some(tokens.div_ceil(64)));
                    assert!(parts.windows(2).all(|p| p[0].end == p[1].first));
                    let used = |p: &Keys| BLOCK_BYTES * (heads * p.queries * (p.end - p.first)) as u64;
                    assert!(parts.iter().all(|p| used(p) <= bytes));
                }
            }
        }
    }

    #[test]
    fn blocks_of_queries_reach_as_far_as_the_last_key_is_seen() {
        for (tokens, reach) in [(1000, 1), (1000, 2), (1000, 64), (1000, 65), (1000, 66), (1000, 1000)] {
            for key in 0..16 {
                let last = (key * 64 + 63).min(tokens - 1);
                let seen_by = (last + reach - 1).min(tokens - 1);
                assert!(queries(tokens, key, reach) > seen_by / 64 - key, "{tokens} {reach} {key}");
            }
        }
    }
}
