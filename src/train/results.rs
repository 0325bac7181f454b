//! The results of an optimizer step: what it reports, and the state that it leaves.

use std::collections::BTreeMap;

use super::objective::PreferenceMetrics;
use crate::adapter::lora::{Pair, Slot};

/// The result of an optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// The objective of the step before the update: for examples the mean loss over all loss tokens.
    pub loss: f64,
    /// Fraction of loss tokens whose target was the most likely token, before the update.
    pub accuracy: f64,
    /// Global L2 norm of the gradient before clipping.
    pub grad_norm: f64,
    /// L2 norm of the update divided by that of the updated adapter.
    pub update_ratio: f64,
    /// Measurements of the comparisons, for objectives that compare samples.
    pub preference: PreferenceMetrics,
    /// Measurements of completions, under TRL's names, for objectives that learn from rewards.
    pub rewards: BTreeMap<String, f64>,
}

/// The objective of a step and its measurements.
#[derive(Default)]
pub(super) struct Measured {
    pub loss: f64,
    pub preference: PreferenceMetrics,
    pub rewards: BTreeMap<String, f64>,
}

/// Everything that an optimizer step changes, in host memory: the contents of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The adapter's matrices.
    pub parameters: BTreeMap<Slot, Pair>,
    /// AdamW's first moments; zero for plain gradient descent.
    pub first: BTreeMap<Slot, Pair>,
    /// AdamW's second moments; zero for plain gradient descent.
    pub second: BTreeMap<Slot, Pair>,
    /// Updates so far: AdamW's step count.
    pub updates: u64,
}
