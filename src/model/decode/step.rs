//! The buffers of a step, which adds a token to each of several sequences.

use super::lengths::{buffer, rows};
use super::scoring::Scoring;
use crate::base::config::Config;
use crate::gpu::{Gpu, GpuError};
use crate::ops::argmax::top;
use crate::ops::cached_attention::EACH_ROWS;

/// Most sequences.
pub const STEP: usize = EACH_ROWS;

/// The buffers that only a step needs.
pub(super) struct Step {
    /// Number of sequences.
    pub count: usize,
    pub table: wgpu::Buffer,  // tokens before each row, and its sequence [STEP, 2]
    pub bounds: wgpu::Buffer, // each token is a sample of its own [STEP, 2]
    pub scoring: Scoring,     // of STEP rows
}

impl Step {
    pub fn new(gpu: &Gpu, config: &Config, count: usize) -> Result<Step, GpuError> {
        assert!((1..=STEP).contains(&count), "{count} sequences, expected 1 to {STEP}");
        let bounds: Vec<[u32; 2]> = (0..STEP as u32).map(|row| [row, row + 1]).collect();
        Ok(Step {
            count,
            table: gpu.buffer("sequences of a step", 8 * STEP as u64)?,
            bounds: gpu.upload("bounds of a step", &bounds)?,
            scoring: Scoring::of_rows(gpu, config.vocab, [STEP; 2], 1)?,
        })
    }

    /// Bytes of [`Step::new`].
    pub fn bytes_of(config: &Config) -> u64 {
        let small = [8 * STEP, 8 * STEP, 4 * STEP, 4 * STEP * top::words(1)];
        rows(STEP, config.vocab) + small.map(buffer).iter().sum::<u64>()
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        let Scoring { logits, targets, results, .. } = &self.scoring;
        [&self.table, &self.bounds, &logits.buffer, targets, results].iter().map(|b| b.size()).sum()
    }
}
