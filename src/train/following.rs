//! The step that follows. Its first micro-batch is uploaded while a step is computed, and computed while the results of the step are read, so
//! that the device has no pause between two steps.

use std::ops::Range;

use super::next_step::{Announced, Begun};
use super::objective::{Objective, mean_coefficients};
use super::{TrainError, Trainer};
use crate::data::batch::{MicroBatch, Step};
use crate::gpu::{GpuError, Recorder};
use crate::model::Inputs;

impl Trainer<'_> {
    /// Names the step after the next one: its first micro-batch is uploaded while the next step is computed. `at_once`: it is expected that
    /// nothing comes between both. Then it is computed, too, before the results of the next step are there. Affects speed only.
    pub fn announce(&self, step: &Step, at_once: bool) {
        let exchange = self.exchange.lock().expect("lock is not poisoned");
        let first = exchange.as_ref().map_or(0, |exchange| exchange.first(step));
        let loss_tokens = step.loss_tokens;
        // Shares are computed apart, and other objectives read the losses of a step more than once.
        let at_once = at_once
            && exchange.is_none()
            && matches!(self.objective, Objective::CrossEntropy)
            && loss_tokens > 0;
        let announced = step.micro_batches.get(first);
        let announced = announced.map(|first| Announced { first: first.clone(), loss_tokens, at_once });
        *self.following.announced.lock().expect("lock is not poisoned") = announced;
    }

    /// Uploads the first micro-batch of the announced step, once, and computes its gradients as those of step `number`, if nothing is expected
    /// to come between.
    pub(super) async fn begin_announced(&self, number: u64) -> Result<(), GpuError> {
        let announced = self.upload_announced().await?.filter(|announced| announced.at_once);
        let Some(Announced { first, loss_tokens, .. }) = announced else { return Ok(()) };
        self.assert_fits(std::slice::from_ref(&first));
        let mut rec = self.start_mean(loss_tokens);
        self.add_mean(&mut rec, &first, (number, 0), 0).await?;
        *self.bind_groups.lock().expect("lock is not poisoned") = rec.into_bind_groups();
        *self.following.begun.lock().expect("lock is not poisoned") =
            Some(Begun { number, first, loss_tokens });
        Ok(())
    }

    /// Uploads the first micro-batch of the announced step, once.
    pub(super) async fn upload_announced(&self) -> Result<Option<Announced>, GpuError> {
        let announced = self.following.announced.lock().expect("lock is not poisoned").take();
        let Some(announced) = announced else { return Ok(None) };
        let inputs = Inputs::upload(self.gpu, self.model, &announced.first).await?;
        self.following.keep(&announced.first, inputs);
        Ok(Some(announced))
    }

    /// Uploads `batch`, unless it is on the device already.
    pub(super) async fn inputs(&self, batch: &MicroBatch) -> Result<Inputs, GpuError> {
        let uploaded = &self.following.uploaded;
        let found = uploaded.lock().expect("lock is not poisoned").take_if(|(of, _)| of == batch);
        match found {
            Some((_, inputs)) => Ok(inputs),
            None => Inputs::upload(self.gpu, self.model, batch).await,
        }
    }

    /// Adds up the gradients of the mean cross entropy. Those of a step that has begun are there in part.
    pub(super) async fn accumulate_mean(
        &self,
        step: &Step,
        number: u64,
        mut micro_batches: Range<usize>,
    ) -> Result<(), TrainError> {
        let begun = self.following.begun.lock().expect("lock is not poisoned").take();
        let mut offset = step.rows_before(micro_batches.start);
        let mut rec = match begun.is_some_and(|begun| begun.is(step, number, &micro_batches)) {
            true => {
                micro_batches.start += 1;
                offset += step.micro_batches[0].loss_rows.len();
                let groups = std::mem::take(&mut *self.bind_groups.lock().expect("lock is not poisoned"));
                Recorder::continuing(self.gpu, groups)
            }
            false => self.start_mean(step.loss_tokens),
        };
        for i in micro_batches {
            offset += self.add_mean(&mut rec, &step.micro_batches[i], (number, i), offset).await?;
        }
        *self.bind_groups.lock().expect("lock is not poisoned") = rec.into_bind_groups();
        Ok(())
    }

    /// Records gradients of zero for a step with so many loss tokens.
    fn start_mean(&self, loss_tokens: usize) -> Recorder<'_> {
        let groups = std::mem::take(&mut *self.bind_groups.lock().expect("lock is not poisoned"));
        let mut rec = Recorder::repeating(self.gpu, groups);
        self.adapter.zero_gradients(&mut rec);
        self.gpu.write(&self.coefficients, &mean_coefficients(loss_tokens));
        rec
    }

    /// Adds the gradients of micro-batch `index` of step `number`, whose losses lie from `offset` on. Returns its loss tokens.
    async fn add_mean<'r>(
        &'r self,
        rec: &mut Recorder<'r>,
        batch: &MicroBatch,
        (number, index): (u64, usize),
        offset: usize,
    ) -> Result<usize, GpuError> {
        let inputs = self.inputs(batch).await?;
        let mask = self.dropout.mask(number, index);
        self.forward_backward(rec, &inputs, &self.losses(offset), mask).await?;
        rec.submit()?;
        rec.forget(&inputs.buffers());
        Ok(inputs.loss_tokens)
    }
}
