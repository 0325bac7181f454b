//! Steps of objectives that learn from rewards: completions that were drawn, with their advantages.

use std::collections::BTreeMap;
use std::ops::Range;

use super::objective::{Grades, Grpo, PreferenceMetrics, by_batch};
use super::results::Measured;
use super::{TrainError, Trainer};
use crate::adapter::lora::{Pair, Slot};
use crate::data::batch::{MicroBatch, Step};
use crate::gpu::{GpuError, Recorder};

impl Trainer<'_> {
    /// Adds up the gradients of the completions of some micro-batches, starting from zero.
    pub(super) async fn accumulate_rollouts(
        &self,
        step: &Step,
        number: u64,
        grpo: &Grpo,
        micro_batches: Range<usize>,
    ) -> Result<(), TrainError> {
        let mut grades = Grades::new(&step.rollouts, step.micro_batches.len());
        let mut rec = Recorder::recurring(self.gpu);
        self.adapter.zero_gradients(&mut rec);
        rec.submit()?;
        let mut coefficients = vec![0.0; step.rows_before(micro_batches.start)];
        let each = by_batch(&step.rollouts, &step.micro_batches).enumerate();
        for (i, rollouts) in each.skip(micro_batches.start).take(micro_batches.len()) {
            let inputs = self.inputs(&step.micro_batches[i]).await?;
            let (offset, mask) = (coefficients.len(), self.dropout.mask(number, i));
            let mut rec = Recorder::recurring(self.gpu);
            self.model.forward(&mut rec, &inputs, &self.adapter, &self.activations, mask).await?;
            // While the model has not changed, every ratio is 1: the losses of the rows are not needed.
            let known = rollouts.iter().all(|rollout| rollout.old.is_empty() && rollout.reference.is_empty());
            let losses = if known {
                vec![0.0; inputs.loss_tokens]
            } else {
                self.head.forward(&mut rec, self.model, &inputs, &self.activations, &self.losses(offset));
                rec.submit()?;
                rec = Recorder::recurring(self.gpu);
                self.read_losses(offset, inputs.loss_tokens).await?
            };
            coefficients.extend(grades.coefficients(grpo, rollouts, &losses));
            self.gpu.write(&self.coefficients, &coefficients);
            self.backward(&mut rec, &inputs, &self.losses(offset), mask).await?;
            rec.submit()?;
        }
        Ok(())
    }

    /// The log-probability of every loss token of `batches`, in order, without dropout.
    pub async fn logps(&self, batches: &[MicroBatch]) -> Result<Vec<f32>, GpuError> {
        let mut logps = Vec::new();
        for batch in batches {
            self.evaluate(std::slice::from_ref(batch), |_| ()).await?;
            let losses = self.read_losses(0, batch.loss_rows.len()).await?;
            logps.extend(losses.iter().map(|loss| -loss));
        }
        Ok(logps)
    }

    /// [`Trainer::logps`] with other values of the adapter. The current ones are back afterwards.
    pub async fn logps_of(
        &self,
        parameters: &BTreeMap<Slot, Pair>,
        batches: &[MicroBatch],
    ) -> Result<Vec<f32>, GpuError> {
        self.following.forget_begun();
        let current = self.adapter().await?;
        self.adapter.write_parameters(self.gpu, parameters);
        let logps = self.logps(batches).await;
        self.adapter.write_parameters(self.gpu, &current);
        logps
    }
}

/// The loss and the measurements of a step, from the losses of all its rows.
pub(super) fn measured(step: &Step, grpo: &Grpo, losses: &[f32]) -> Measured {
    let mut grades = Grades::new(&step.rollouts, step.micro_batches.len());
    let mut losses = losses;
    for (batch, rollouts) in step.micro_batches.iter().zip(by_batch(&step.rollouts, &step.micro_batches)) {
        let (own, others) = losses.split_at(batch.loss_rows.len());
        losses = others;
        grades.coefficients(grpo, rollouts, own);
    }
    let preference = PreferenceMetrics { kl: grades.kl(), ..PreferenceMetrics::default() };
    Measured { loss: grades.loss(), preference, rewards: grades.metrics(grpo) }
}
