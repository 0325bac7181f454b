//! One step of what was planned.

use super::Steps;
use crate::data::batch::Sample;
use crate::train::trainer::{Optimizer, StepReport, TrainError, Trainer};

impl Steps {
    /// Takes step `index`, from 0, while the first micro-batch of the one behind it goes to the device.
    pub async fn take(
        &self,
        trainer: &Trainer<'_>,
        samples: &[Sample],
        index: usize,
        optimizer: &Optimizer,
    ) -> Result<StepReport, TrainError> {
        let number = index + 1;
        if number < self.plans.len() {
            trainer.announce(&self.step(samples, number));
        }
        let learning_rate = self.schedule.learning_rate(index);
        trainer.step(&self.step(samples, index), number as u64, optimizer, learning_rate).await
    }

    /// Tokens that pass through the model in step `index`, from 0.
    pub fn tokens(&self, samples: &[Sample], index: usize) -> usize {
        self.plans[index].iter().flatten().map(|&sample| samples[sample].ids.len()).sum()
    }
}
