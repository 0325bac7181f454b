//! Settings of the optimizer step: optimizer and dropout.

use serde::{Deserialize, Serialize};

use crate::ops::adamw::AdamW;
use crate::ops::dropout::Mask;

/// The optimizers that a recipe can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    /// AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101), as `torch.optim.AdamW`.
    Adamw,
    /// Plain gradient descent, as `torch.optim.SGD` without momentum.
    Sgd,
}

/// The rule that turns gradients into updates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    /// AdamW's settings; `None` for plain gradient descent.
    pub adam: Option<AdamW>,
    /// Weight decay of plain gradient descent; AdamW has its own.
    pub weight_decay: f64,
    /// Largest global gradient norm; larger gradients are clipped to it. 0 disables clipping.
    pub max_grad_norm: f64,
}

/// Dropout's probability and the seed of its masks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Probability of dropping a value, in `[0, 1)`.
    pub probability: f64,
    /// Seed of every mask.
    pub seed: u64,
}

impl Dropout {
    /// No dropout.
    pub const NONE: Dropout = Dropout { probability: 0.0, seed: 0 };

    /// The mask of one micro-batch. It depends on the step's number only, so a resumed run gets the same masks.
    pub(super) fn mask(&self, step: u64, micro_batch: usize) -> Option<Mask> {
        let key = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (step << 20) ^ micro_batch as u64;
        let key = key.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (self.probability > 0.0).then_some(Mask { probability: self.probability, key: (key >> 32) as u32 })
    }
}
