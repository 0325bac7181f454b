//! The micro-batches of an optimizer step, and how their samples are compared.

use super::micro_batch::MicroBatch;
use super::rollout::Rollout;
use super::sample::{Sample, Side};

/// The micro-batches of one optimizer step. Its loss is the mean over `loss_tokens`, however they are split into micro-batches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// The micro-batches that run forward and backward before one optimizer update.
    pub micro_batches: Vec<MicroBatch>,
    /// Number of loss tokens in all micro-batches.
    pub loss_tokens: usize,
    /// The samples' comparison, for objectives that compare them.
    pub comparison: Option<Comparison>,
    /// The samples as completions, in the order of the micro-batches, for objectives that learn from rewards; empty for others.
    pub rollouts: Vec<Rollout>,
}

/// The samples of a step, for objectives that compare them. Counts are those of the whole step, also where its micro-batches
/// are shared among several devices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// The samples of all micro-batches, in their order. A pair is in one micro-batch.
    pub samples: Vec<Compared>,
    /// Number of pairs or of rated samples.
    pub units: usize,
    /// Number of loss tokens of the good samples.
    pub good_tokens: usize,
    /// Prompts with the answers of other samples.
    pub mismatched: Vec<MicroBatch>,
    /// Sum of the log-probabilities of these answers under the reference.
    pub mismatched_reference: f64,
}

/// A sample that is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// The part that it plays.
    pub side: Side,
    /// Log-probability of its answer under the reference; 0 for objectives without one.
    pub reference: f64,
}

impl Step {
    /// One micro-batch, whose loss is the mean over its loss tokens.
    pub fn of(batch: MicroBatch) -> Step {
        Step { loss_tokens: batch.loss_rows.len(), micro_batches: vec![batch], ..Step::default() }
    }

    /// Builds a step from its plan: indices into `samples`, one list per micro-batch.
    pub fn new(samples: &[Sample], micro_batches: &[Vec<usize>]) -> Step {
        let pack = |indices: &Vec<usize>| MicroBatch::pack(indices.iter().map(|&i| &samples[i]));
        let micro_batches: Vec<MicroBatch> = micro_batches.iter().map(pack).collect();
        let loss_tokens = micro_batches.iter().map(|batch| batch.targets.len()).sum();
        Step { micro_batches, loss_tokens, ..Step::default() }
    }

    /// Number of tokens that pass through the model.
    pub fn tokens(&self) -> usize {
        self.micro_batches.iter().map(MicroBatch::len).sum()
    }

    /// Loss tokens of the first `micro_batches`.
    pub fn rows_before(&self, micro_batches: usize) -> usize {
        self.micro_batches[..micro_batches].iter().map(|batch| batch.targets.len()).sum()
    }
}
