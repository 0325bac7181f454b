//! The training objective: how the losses of a step's rows become one number to minimise.
//!
//! Every objective is a function of the rows' losses. Its gradient with respect to each row's loss, the row's coefficient,
//! seeds the backward pass. The mean cross entropy has coefficients that are known ahead. The others compare samples, so
//! their coefficients follow from the losses of a first pass through the head.

pub mod advantages;
mod graded;
mod grpo;
mod preference;
mod score;
mod scores;

pub use crate::ops::distill::{Distill, Divergence};
pub use graded::{Grades, by_batch};
pub use grpo::{Counts, Grpo, GrpoLoss, Judgeable, Level, TokenLosses};
pub use preference::{Judged, Preference, PreferenceLoss, Scored};
pub use score::Score;
pub use scores::{PreferenceMetrics, Tally};

/// The quantity that training minimises.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Objective {
    /// Mean cross entropy over the loss tokens of the step.
    #[default]
    CrossEntropy,
    /// Mean of a loss that compares samples.
    Preference(Preference),
    /// Mean of a divergence from a teacher, with cross entropy.
    Distill(Distill),
    /// A loss of sampled completions with rewards.
    Grpo(Grpo),
}

impl Objective {
    /// The objective that compares samples, if it is one.
    pub fn preference(&self) -> Option<&Preference> {
        match self {
            Objective::Preference(preference) => Some(preference),
            _ => None,
        }
    }

    /// The loss of an objective that learns from rewards.
    pub fn grpo(&self) -> Option<&Grpo> {
        match self {
            Objective::Grpo(grpo) => Some(grpo),
            _ => None,
        }
    }

    /// The temperature of the log-probabilities.
    pub fn temperature(&self) -> f64 {
        self.grpo().map_or(1.0, |grpo| grpo.temperature)
    }

    /// The loss of an objective that has a teacher.
    pub fn distill(&self) -> Option<Distill> {
        match self {
            Objective::Distill(distill) => Some(*distill),
            _ => None,
        }
    }
}

/// The gradient of the mean cross entropy over `rows` rows with respect to the loss of each row, `[rows]`.
pub fn mean_coefficients(rows: usize) -> Vec<f32> {
    vec![1.0 / rows as f32; rows]
}
