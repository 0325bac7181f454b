//! The rows of logits that exist at a time.

use super::plan::Passes;
use crate::base::config::Config;
use crate::gpu::Gpu;
use crate::ops::linear::cuda;

/// Bounds of the bytes of a chunk of logits, unless one row alone is larger: more rows keep more of the device busy, and long
/// passes have room for them.
const HEAD_BYTES: [u64; 2] = [128 << 20, 256 << 20];
/// Bytes of logits per loss token, between these bounds.
const HEAD_BYTES_PER_TOKEN: u64 = 32 << 10;

/// Rows that products in CUDA take at a time.
const LONG: usize = 1024;

/// Rows of `vocab` logits, of `loss_tokens` in all; `tiles` where products run on 16×16 matrices, which compute 128 rows at a time.
/// `long` where they are multiplied in CUDA.
pub fn rows(vocab: usize, loss_tokens: usize, tiles: bool, long: bool) -> usize {
    if long {
        return LONG;
    }
    let row_bytes = (vocab.next_multiple_of(4) * 4) as u64;
    let bytes = (loss_tokens as u64 * HEAD_BYTES_PER_TOKEN).clamp(HEAD_BYTES[0], HEAD_BYTES[1]);
    let rows = ((bytes / row_bytes) as usize).clamp(1, 65_535);
    let whole = if tiles && rows > 128 { rows / 128 * 128 } else { rows };
    whole.min(loss_tokens.max(1))
}

/// Bytes of the fragments of the output projection, if passes should multiply their logits in CUDA where a plan with them fits: the logits,
/// in f32 and in f16, take at most a sixteenth of the memory that the whole plan may take. Where all fragments fit into that too, there is
/// room for all.
pub fn long_fragments(gpu: &Gpu, config: &Config, passes: Passes) -> Option<u64> {
    let logits = (LONG * config.vocab * 6) as u64;
    let room = (passes.recompute.memory() / 16).checked_sub(logits)?;
    let is_long = gpu.kernels().cuda().is_some() && passes.capacity.loss_tokens >= LONG;
    is_long.then(|| cuda::head_bytes(config.vocab, config.width, room.min(gpu.max_binding_bytes())))
}
