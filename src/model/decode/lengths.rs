//! Limits on sequence lengths, and bytes of buffers.

use crate::base::config::Config;

/// Limits on sequence lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Maximum number of tokens in a sequence.
    pub context: usize,
    /// Maximum number of tokens in one pass. A longer prompt takes several.
    pub chunk: usize,
}

impl Lengths {
    /// Rows of a layer's cache. A sliding-window layer keeps its window, room for a pass, and as many rows again: this is how
    /// many tokens can be rewound ([`super::Decoder::rewind`]).
    pub(super) fn ring(&self, window: Option<usize>) -> usize {
        window.map_or(self.context, |w| self.context.min(w + 2 * self.chunk))
    }

    /// [`Lengths::ring`] of a sequence beside others: each begins at a multiple of 256 bytes.
    pub(super) fn ring_of_each(&self, window: Option<usize>) -> usize {
        self.ring(window).next_multiple_of(8)
    }

    /// [`Lengths::cache_bytes`] of a sequence beside others.
    pub(super) fn cache_bytes_of_each(&self, config: &Config, layer: usize) -> u64 {
        let window = config.layers[layer].window;
        self.cache_bytes(config, layer) / self.ring(window) as u64 * self.ring_of_each(window) as u64
    }

    /// Bytes of one layer's cache for one sequence; 0 if it uses another layer's cache.
    pub(super) fn cache_bytes(&self, config: &Config, layer: usize) -> u64 {
        let l = &config.layers[layer];
        match l.kv_donor {
            Some(_) => 0,
            None if !l.has_attention() => 0,
            None => (self.ring(l.window) * 2 * l.kv_heads * l.head_size * 4) as u64,
        }
    }
}

/// Bytes of a buffer that holds `bytes`.
pub(super) fn buffer(bytes: usize) -> u64 {
    bytes.max(16).next_multiple_of(16) as u64
}

/// Bytes of rows on the device.
pub(super) fn rows(rows: usize, width: usize) -> u64 {
    buffer(rows * width.next_multiple_of(4) * 4)
}
