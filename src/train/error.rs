//! Errors of training steps.

use super::ranks::link::LinkError;
use crate::gpu::GpuError;

/// An error that stops a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The device failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Communication between ranks failed.
    #[error(transparent)]
    Ranks(#[from] LinkError),
    /// The loss, the gradient or a hidden state is infinite or NaN. The adapter was not updated.
    #[error(
        "step {step}: the loss is {loss}, the gradient norm {grad_norm}, and {rows} of {loss_tokens} loss tokens overflowed; \
         expected finite numbers. The adapter was not updated by this step. Lower train.learning_rate, or allow such steps to \
         be skipped with train.max_skipped_steps"
    )]
    NotFinite {
        /// Optimizer step, from 1.
        step: u64,
        /// Mean loss. It can look normal: the softcap hides an overflow that happened before it.
        loss: f64,
        /// L2 norm of the gradient before clipping.
        grad_norm: f64,
        /// Loss tokens whose hidden state or logits are not finite.
        rows: usize,
        /// Loss tokens of the step.
        loss_tokens: usize,
    },
    /// A hidden state of the longest batch is infinite or NaN.
    #[error(
        "the model overflows before the first step: the hidden states or logits of {rows} of {tokens} tokens of the longest \
         batch are not finite. The base file is damaged, or the adapter in lora.init_from does not belong to it"
    )]
    LongestNotFinite {
        /// Loss tokens whose hidden state or logits are not finite.
        rows: usize,
        /// Loss tokens of the batch.
        tokens: usize,
    },
    /// A hidden state of the validation samples is infinite or NaN.
    #[error(
        "validation after step {step}: the hidden states or logits of {rows} of {tokens} tokens are not finite, so the loss is \
         meaningless"
    )]
    ValidationNotFinite {
        /// Optimizer steps so far.
        step: usize,
        /// Loss tokens whose hidden state or logits are not finite.
        rows: usize,
        /// Loss tokens of the validation samples.
        tokens: usize,
    },
    /// The loss rose far above its start.
    #[error(
        "step {step}: the run has diverged: the mean loss of the last {over} steps is {mean:.2}, and it was {start:.2} at the \
         start. Lower train.learning_rate, or set train.stop_if_diverged = false to go on anyway"
    )]
    Diverged {
        /// Optimizer step, from 1.
        step: usize,
        /// Number of the recent steps.
        over: usize,
        /// Mean loss of the recent steps.
        mean: f64,
        /// Loss at the start.
        start: f64,
    },
    /// No step changed the adapter.
    #[error(
        "training changed nothing: the adapter equals its initial value. Check train.learning_rate, and that the run has more \
         steps than its warm-up"
    )]
    Unmoved,
    /// The teacher's log-probabilities cannot be computed, written or read.
    #[error("{0}")]
    Teacher(String),
    /// Completions cannot be drawn, or a reward failed.
    #[error("{0}")]
    Rewards(String),
    /// A step without loss tokens.
    #[error("step {step} has no loss tokens; remove the samples without labels")]
    NoLoss {
        /// Optimizer step, from 1.
        step: u64,
    },
}
