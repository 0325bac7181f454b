//! Buffers for the logits of rows, and for what they say of targets and the likeliest tokens.

use crate::gpu::{Gpu, GpuError};
use crate::ops::Rows;
use crate::ops::argmax::top;

/// The buffers that only [`Decoder::scores`](super::Decoder::scores) and a step of several sequences need.
pub struct Scoring {
    pub(super) rows: usize,
    pub(super) logits: Rows,          // [rows, V]
    pub(super) targets: wgpu::Buffer, // [chunk]
    pub(super) results: wgpu::Buffer, // [chunk, words]
    pub(super) top: usize,
}

impl Scoring {
    /// Buffers for logits of `rows` rows at a time, and the results of `chunk`.
    pub(super) fn of_rows(
        gpu: &Gpu,
        vocab: usize,
        [rows, chunk]: [usize; 2],
        top: usize,
    ) -> Result<Scoring, GpuError> {
        Ok(Scoring {
            rows,
            logits: Rows::new(gpu, "logits to score", rows, vocab)?,
            targets: gpu.buffer("tokens to score", (chunk * 4) as u64)?,
            results: gpu.buffer("scores", (chunk * top::words(top) * 4) as u64)?,
            top,
        })
    }
}
