//! The rows of logits that exist at a time.

use super::passes::Passes;
use crate::base::config::Config;
use crate::gpu::Gpu;
use crate::ops::linear::cuda;

/// Bounds of the bytes of a chunk of logits, unless one row alone is larger: more rows keep more of the device busy, and long
/// passes have room for them.
const HEAD_BYTES: [u64; 2] = [128 << 20, 256 << 20];
/// Bytes of logits per loss token, between these bounds.
const HEAD_BYTES_PER_TOKEN: u64 = 32 << 10;

/// Most rows that products in CUDA take at a time.
const LONG: usize = 1024;

/// Rows of `vocab` logits, of `loss_tokens` in all; `tiles` where products run on 16×16 matrices, which compute 128 rows at a time.
/// `long` where they are multiplied in CUDA.
pub fn rows(vocab: usize, loss_tokens: usize, tiles: bool, long: bool) -> usize {
    if long {
        return long_rows(loss_tokens);
    }
    let row_bytes = (vocab.next_multiple_of(4) * 4) as u64;
    let bytes = (loss_tokens as u64 * HEAD_BYTES_PER_TOKEN).clamp(HEAD_BYTES[0], HEAD_BYTES[1]);
    let rows = ((bytes / row_bytes) as usize).clamp(1, 65_535);
    let whole = if tiles && rows > 128 { rows / 128 * 128 } else { rows };
    whole.min(loss_tokens.max(1))
}

/// Rows of `vocab` logits that a buffer can hold; at least one.
pub fn most_rows(gpu: &Gpu, vocab: usize) -> usize {
    let row_bytes = vocab.next_multiple_of(4) as u64 * 4;
    ((gpu.max_binding_bytes() / row_bytes) as usize).max(1)
}

fn long_rows(loss_tokens: usize) -> usize {
    loss_tokens.next_multiple_of(cuda::TOKENS).min(LONG)
}

/// Bytes of the panels of the output projection with which logits are multiplied in CUDA.
#[derive(Clone, Copy, Default)]
pub struct LongPanels {
    /// Bytes for the whole projection both ways, and for it one way, where passes have loss tokens enough.
    pub all: [Option<u64>; 2],
    /// Bytes for as much of the projection as fits, with the logits in f32 and in f16, into a sixteenth of the memory that the whole plan may
    /// take: whatever layers keep, this is worth its memory. `None` where the logits alone take more.
    pub worthwhile: Option<u64>,
}

impl LongPanels {
    /// The bytes for `passes` of a model.
    pub fn of(gpu: &Gpu, config: &Config, passes: Passes) -> LongPanels {
        let loss_tokens = passes.capacity.loss_tokens;
        let is_long = gpu.kernels().cuda().is_some_and(|least| loss_tokens >= least.tokens.max(1));
        if !is_long {
            return LongPanels::default();
        }
        let bytes =
            |room: u64| cuda::head_bytes(config.vocab, config.width, room.min(gpu.max_binding_bytes()));
        let logits = (long_rows(loss_tokens) * config.vocab * 6) as u64;
        let room = (passes.recompute.memory() / 16).checked_sub(logits);
        let both = bytes(u64::MAX);
        LongPanels { all: [both, bytes(both - 1)].map(Some), worthwhile: room.map(bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::rows;

    #[test]
    fn rows_fill_blocks_of_cuda() {
        let long = [1, 256, 511, 700, 1000, 8192].map(|loss_tokens| rows(262_144, loss_tokens, true, true));
        assert_eq!(long, [128, 256, 512, 768, 1024, 1024]);
    }

    #[test]
    fn rows_stay_within_their_bytes() {
        let short = [1, 100, 511, 8192].map(|loss_tokens| rows(262_144, loss_tokens, true, false));
        assert_eq!(short, [1, 100, 128, 256]);
    }
}
