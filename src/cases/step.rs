//! Sizes of a training step, from which operations take the shapes that are timed.

use crate::gpu::Gpu;

/// The sizes of a step.
pub struct Step {
    /// Rows of the stream.
    pub tokens: usize,
    /// Columns of the stream.
    pub width: usize,
    /// Columns of the feed-forward layer.
    pub ffn: usize,
    /// Heads of queries; there is one of keys.
    pub heads: usize,
    /// Head size and window of sliding and of full layers.
    pub layers: [(usize, Option<usize>); 2],
    /// Rank of the adapter.
    pub rank: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Tokens whose logits are in memory at a time.
    pub head_rows: usize,
}

impl Step {
    /// The sizes of gemma4:e2b on 2048 tokens, or small ones on a software renderer; with `tokens`, on as many.
    pub fn of(gpu: &Gpu, tokens: Option<usize>) -> Step {
        let step = match gpu.is_software() {
            true => Step {
                tokens: 128,
                width: 256,
                ffn: 512,
                heads: 2,
                layers: [(64, Some(64)), (128, None)],
                rank: 16,
                vocab: 2048,
                head_rows: 64,
            },
            false => Step {
                tokens: 2048,
                width: 1536,
                ffn: 6144,
                heads: 8,
                layers: [(256, Some(512)), (512, None)],
                rank: 16,
                vocab: 262_144,
                head_rows: 256,
            },
        };
        Step { tokens: tokens.unwrap_or(step.tokens), ..step }
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Step { tokens, width, ffn, heads, rank, vocab, head_rows, .. } = self;
        write!(f, "{tokens} tokens, width {width}, feed-forward {ffn}, {heads} heads, rank {rank}, ")?;
        write!(f, "logits of {head_rows} tokens over {vocab}")
    }
}
