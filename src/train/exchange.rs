//! Combining the gradients of the trainers that share an optimizer step.

use super::{TrainError, Trainer};

/// Runs between [`Trainer::accumulate`] and [`Trainer::apply`].
///
/// Afterwards every trainer of the step must hold the same gradients: their sum in a fixed order, so that results do not
/// depend on timing.
pub trait Exchange {
    /// Replaces `trainer`'s gradients by the sum over all trainers of the step.
    fn exchange(&mut self, trainer: &Trainer<'_>) -> impl Future<Output = Result<(), TrainError>>;
}

/// A single trainer, whose gradients are already the sum.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Exchange for Alone {
    async fn exchange(&mut self, _: &Trainer<'_>) -> Result<(), TrainError> {
        Ok(())
    }
}
