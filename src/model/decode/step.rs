//! The buffers of a step, which adds a token to each of several sequences.

use super::lengths::{buffer, rows};
use crate::base::config::Config;
use crate::gpu::{Gpu, GpuError};
use crate::ops::Rows;
use crate::ops::cached_attention::EACH_ROWS;
use crate::ops::categorical::Categorical;

/// Most sequences.
pub const STEP: usize = EACH_ROWS;

/// The buffers that only a step needs.
pub(super) struct Step {
    /// Number of sequences.
    pub count: usize,
    pub table: wgpu::Buffer,  // tokens before each row, and its sequence [STEP, 2]
    pub bounds: wgpu::Buffer, // each token is a sample of its own [STEP, 2]
    pub logits: Rows,         // [STEP, V]
    pub categorical: Categorical,
}

impl Step {
    pub fn new(gpu: &Gpu, config: &Config, count: usize) -> Result<Step, GpuError> {
        assert!((1..=STEP).contains(&count), "{count} sequences, expected 1 to {STEP}");
        let bounds: Vec<[u32; 2]> = (0..STEP as u32).map(|row| [row, row + 1]).collect();
        Ok(Step {
            count,
            table: gpu.buffer("sequences of a step", 8 * STEP as u64)?,
            bounds: gpu.upload("bounds of a step", &bounds)?,
            logits: Rows::new(gpu, "logits of a step", STEP, config.vocab)?,
            categorical: Categorical::new(gpu, STEP)?,
        })
    }

    /// Bytes of [`Step::new`].
    pub fn bytes_of(config: &Config) -> u64 {
        let small = [8 * STEP, 8 * STEP].into_iter().chain(Categorical::bytes_of(STEP));
        rows(STEP, config.vocab) + small.map(buffer).sum::<u64>()
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        let own: u64 = [&self.table, &self.bounds, &self.logits.buffer].iter().map(|b| b.size()).sum();
        own + self.categorical.bytes()
    }
}
