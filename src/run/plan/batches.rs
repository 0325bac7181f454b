//! The samples of a run's steps.

use std::collections::BTreeMap;
use std::pin::Pin;

use super::Steps;
use super::phase::Phase;
use super::rollout_line::RolloutLine;
use crate::data::batch::{Capacity, MicroBatch, Sample, Step};
use crate::train::{Optimizer, StepReport, TrainError, Trainer};

/// A step that is being decided; `None` if the user asked to stop.
pub type NextStep<'s> = Pin<Box<dyn Future<Output = Result<Option<Step>, TrainError>> + 's>>;

/// Measurements of held-out samples that are being taken; `None` if the user asked to stop.
pub type Evaluated<'s> =
    Pin<Box<dyn Future<Output = Result<Option<BTreeMap<String, f64>>, TrainError>> + 's>>;

/// Hears of the progress of a phase: the units done, and those of the whole phase. Returns false if the user asked to stop.
pub type Hear<'h> = &'h mut dyn FnMut(Phase, usize, usize) -> bool;

/// The samples of a run's steps. All may be planned ahead, or an objective decides them during the run.
pub trait Batches {
    /// Number of steps.
    fn steps(&self) -> usize;

    /// Decides step `index`, from 0, after all steps before it: `trainer` has the adapter that the step will train.
    fn next<'s>(&'s mut self, index: usize, trainer: &'s Trainer<'_>, hear: Hear<'s>) -> NextStep<'s>;

    /// Step `index`, if it does not depend on the steps before it. Its first micro-batch is uploaded while they run.
    fn known(&self, index: usize) -> Option<Step>;

    /// Bound on the size of every step: the trainer has room for it.
    fn bound(&self) -> Capacity;

    /// Micro-batches that need as much device memory as any. They are tried before the first step.
    fn largest(&self) -> Vec<MicroBatch>;

    /// Whatever step `index` takes from the steps before it, besides the adapter, as text for a checkpoint.
    fn state(&self, _index: usize) -> Option<String> {
        None
    }

    /// Takes what [`Batches::state`] returned. Fails if it is something else.
    fn restore(&mut self, _state: &str) -> Result<(), String> {
        Ok(())
    }

    /// Measures the model on held-out samples, besides their losses.
    fn evaluate<'s>(&'s mut self, _trainer: &'s Trainer<'_>, _hear: Hear<'s>) -> Evaluated<'s> {
        Box::pin(std::future::ready(Ok(Some(BTreeMap::new()))))
    }

    /// Measurements of the step that was decided last.
    fn metrics(&self) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }

    /// Completions that were drawn for the step that was decided last.
    fn lines(&self) -> &[RolloutLine] {
        &[]
    }
}

/// Steps that are planned ahead, over samples that are there.
#[derive(Clone, Copy)]
pub struct Planned<'a> {
    /// The plan.
    pub steps: &'a Steps,
    /// The samples.
    pub samples: &'a [Sample],
}

impl Batches for Planned<'_> {
    fn steps(&self) -> usize {
        self.steps.plans.len()
    }

    fn next<'s>(&'s mut self, index: usize, _: &'s Trainer<'_>, _: Hear<'s>) -> NextStep<'s> {
        Box::pin(std::future::ready(self.steps.taught(self.samples, index).map(Some)))
    }

    fn known(&self, index: usize) -> Option<Step> {
        let next = || self.steps.taught(self.samples, index).ok();
        (index < self.steps()).then(next).flatten()
    }

    fn bound(&self) -> Capacity {
        let mut capacity = Capacity::LEAST;
        for index in 0..self.steps() {
            capacity.include(&self.steps.step(self.samples, index));
        }
        capacity
    }

    /// The micro-batch with the most tokens, and the one with the most loss tokens.
    fn largest(&self) -> Vec<MicroBatch> {
        let Planned { steps, samples } = self;
        let plans = || steps.plans.iter().flatten();
        let longest = plans().max_by_key(|plan| plan.iter().map(|&i| samples[i].ids.len()).sum::<usize>());
        let heaviest =
            plans().max_by_key(|plan| plan.iter().map(|&i| samples[i].loss_tokens()).sum::<usize>());
        let mut largest: Vec<&Vec<usize>> = longest.into_iter().chain(heaviest).collect();
        largest.dedup();
        largest.iter().map(|plan| steps.comparing.pack(plan.iter().map(|&i| &samples[i]))).collect()
    }
}

/// Takes `step`, which is number `index`, from 0. The first micro-batch of the following step is uploaded meanwhile, if that is known, and begun if
/// it comes `at_once`.
pub async fn take(
    batches: &dyn Batches,
    trainer: &Trainer<'_>,
    (index, step): (usize, &Step),
    optimizer: &Optimizer,
    learning_rate: f64,
    at_once: bool,
) -> Result<StepReport, TrainError> {
    let number = index + 1;
    if let Some(following) = batches.known(number) {
        trainer.announce(&following, at_once);
    }
    trainer.step(step, number as u64, optimizer, learning_rate).await
}
