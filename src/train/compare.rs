//! Steps and evaluations of objectives that compare samples.
//!
//! A micro-batch runs forward, and through the head for the losses of its rows. From them follow the coefficients, with which
//! it runs through the head again and backward.

use std::ops::Range;

use super::objective::{Preference, PreferenceMetrics, Score, Tally};
use super::ranks::micro_batches;
use super::results::Measured;
use super::rewards;
use super::{LossTotals, TrainError, Trainer};
use crate::data::batch::{Compared, Comparison, MicroBatch, Step};
use crate::gpu::{GpuError, Recorder, Started};
use crate::model::{Inputs, Losses};
use crate::ops::dropout::Mask;

impl Trainer<'_> {
    /// Adds up the gradients of the comparisons of some micro-batches, starting from zero. Needs [`Trainer::find_kl`] of the step.
    pub(super) async fn accumulate_comparison(
        &self,
        step: &Step,
        number: u64,
        preference: &Preference,
        micro_batches: Range<usize>,
    ) -> Result<(), TrainError> {
        let comparison = compared(step);
        let mut tally = Tally::new(self.kl());
        let mut rec = Recorder::recurring(self.gpu);
        self.adapter.zero_gradients(&mut rec);
        rec.submit()?;
        let mut coefficients = vec![0.0; step.rows_before(micro_batches.start)];
        for (i, batch, samples) in with_samples(step).skip(micro_batches.start).take(micro_batches.len()) {
            let inputs = self.inputs(batch).await?;
            let (offset, mask) = (coefficients.len(), self.dropout.mask(number, i));
            let mut rec = Recorder::recurring(self.gpu);
            self.model.forward(&mut rec, &inputs, &self.adapter, &self.activations, mask).await?;
            self.head.forward(&mut rec, self.model, &inputs, &self.activations, &self.losses(offset));
            rec.submit()?;
            let losses = self.read_losses(offset, inputs.loss_tokens).await?;
            coefficients.extend(tally.coefficients(preference, batch, &losses, samples, comparison));
            self.gpu.write(&self.coefficients, &coefficients);
            let mut rec = Recorder::recurring(self.gpu);
            self.backward(&mut rec, &inputs, &self.losses(offset), mask).await?;
            rec.submit()?;
        }
        Ok(())
    }

    /// The loss and the measurements of a step, from the losses of all its rows.
    pub(super) fn judge(
        &self,
        step: &Step,
        preference: &Preference,
        losses: &[f32],
    ) -> (f64, PreferenceMetrics) {
        let good_tokens = compared(step).good_tokens;
        let mut tally = Tally::new(self.kl());
        let mut losses = losses;
        for (_, batch, samples) in with_samples(step) {
            let (own, others) = losses.split_at(batch.loss_rows.len());
            losses = others;
            tally.add(preference, &Score::of(batch, own), samples);
        }
        (tally.loss(preference, good_tokens), tally.metrics(preference, good_tokens))
    }

    /// Finds and keeps KTO's estimate for a step, before its gradients.
    pub(super) async fn find_kl(&self, step: &Step) -> Result<(), TrainError> {
        if let Some(comparison) = &step.comparison {
            let kl = self.moved(comparison).await?;
            *self.kl.lock().expect("lock is not poisoned") = kl;
        }
        Ok(())
    }

    fn kl(&self) -> Option<f64> {
        *self.kl.lock().expect("lock is not poisoned")
    }

    /// KTO's estimate of the KL divergence from the reference, from answers to other prompts, which the ranks divide.
    pub async fn moved(&self, comparison: &Comparison) -> Result<Option<f64>, TrainError> {
        if !self.objective.preference().is_some_and(Preference::needs_mismatched) {
            return Ok(None);
        }
        let (ranks, batches) = (self.ranks(), &comparison.mismatched);
        let own = micro_batches(ranks.rank(), ranks.size(), batches.len());
        let (scores, _) = self.score(&batches[own], |_| ()).await?;
        let bytes: Vec<u8> = scores.into_iter().flat_map(Score::to_bytes).collect();
        let all = ranks.gather(&bytes)?.concat();
        let (sum, count) =
            Score::from_bytes(&all).fold((0.0, 0), |(sum, n), score| (sum + score.logp, n + 1));
        let mean = (sum - comparison.mismatched_reference) / count.max(1) as f64;
        Ok(Some(mean.max(0.0)))
    }

    /// The log-probabilities of the samples of `batches`, in order, without dropout. `progress` is called with the number of
    /// batches done.
    pub async fn score(
        &self,
        batches: &[MicroBatch],
        mut progress: impl FnMut(usize),
    ) -> Result<(Vec<Score>, LossTotals), GpuError> {
        let (mut scores, mut totals) = (Vec::new(), LossTotals::default());
        for (i, batch) in batches.iter().enumerate() {
            totals += self.evaluate(std::slice::from_ref(batch), |_| ()).await?;
            let losses = self.read_losses(0, batch.loss_rows.len()).await?;
            scores.extend(Score::of(batch, &losses));
            progress(i + 1);
        }
        Ok((scores, totals))
    }

    /// The token scores of a micro-batch without dropout, and the scores of its samples if the objective compares them.
    pub async fn validate(&self, batch: &MicroBatch) -> Result<(Vec<Score>, LossTotals), GpuError> {
        let batch = std::slice::from_ref(batch);
        match self.objective.preference() {
            Some(_) => self.score(batch, |_| ()).await,
            None => Ok((Vec::new(), self.evaluate(batch, |_| ()).await?)),
        }
    }

    /// Starts to read the losses of the step whose gradients were accumulated last.
    pub(super) fn start_losses(&self, step: &Step) -> Started {
        self.gpu.start_read(&self.losses, 0, 4 * step.loss_tokens as u64)
    }

    /// The objective of that step.
    pub(super) async fn loss(&self, step: &Step, losses: &Started) -> Result<Measured, GpuError> {
        let losses = self.gpu.finish_read::<f32>(losses, step.loss_tokens).await?;
        if let Some(preference) = self.objective.preference() {
            let (loss, preference) = self.judge(step, preference, &losses);
            return Ok(Measured { loss, preference, ..Measured::default() });
        }
        if let Some(distill) = self.objective.distill() {
            let totals = self.read_totals(step.loss_tokens).await?;
            let loss = distill.loss(totals.divergence(), totals.loss());
            return Ok(Measured { loss, preference: totals.lesson(), ..Measured::default() });
        }
        if let Some(grpo) = self.objective.grpo() {
            return Ok(rewards::measured(step, grpo, &losses));
        }
        let mean = losses.iter().map(|&l| f64::from(l)).sum::<f64>() / step.loss_tokens as f64;
        Ok(Measured { loss: mean, ..Measured::default() })
    }

    /// The objective's value for `step`, without dropout.
    pub async fn loss_of(&self, step: &Step) -> Result<f64, TrainError> {
        let (Some(preference), Some(comparison)) = (self.objective.preference(), &step.comparison) else {
            let totals = self.evaluate(&step.micro_batches, |_| ()).await?;
            let distill = self.objective.distill();
            return Ok(distill.map_or(totals.loss(), |d| d.loss(totals.divergence(), totals.loss())));
        };
        let mut tally = Tally::new(self.moved(comparison).await?);
        let (scores, _) = self.score(&step.micro_batches, |_| ()).await?;
        tally.add(preference, &scores, &comparison.samples);
        Ok(tally.loss(preference, comparison.good_tokens))
    }

    pub(super) async fn read_losses(&self, offset: usize, rows: usize) -> Result<Vec<f32>, GpuError> {
        self.gpu.read_at::<f32>(&self.losses, 4 * offset as u64, rows).await
    }

    /// Records the backward pass of a micro-batch whose activations are there and whose coefficients are written.
    pub(super) async fn backward<'r>(
        &'r self,
        rec: &mut Recorder<'r>,
        inputs: &Inputs,
        losses: &Losses<'_>,
        mask: Option<Mask>,
    ) -> Result<(), GpuError> {
        rec.end_part();
        self.head.backward(rec, self.model, inputs, &self.activations, losses, &self.coefficients);
        rec.end_part();
        self.model.backward(rec, inputs, &self.adapter, &self.activations, mask).await
    }
}

fn compared(step: &Step) -> &Comparison {
    step.comparison.as_ref().expect("a step of this objective compares samples")
}

/// The micro-batches of a step with their numbers and samples.
fn with_samples(step: &Step) -> impl Iterator<Item = (usize, &MicroBatch, &[Compared])> {
    let mut samples = &compared(step).samples[..];
    step.micro_batches.iter().enumerate().map(move |(i, batch)| {
        let (own, others) = samples.split_at(batch.samples());
        samples = others;
        (i, batch, own)
    })
}
