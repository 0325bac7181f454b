//! Steps and validation files of objectives that compare samples.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::distill::lessons::Lessons;
use super::references::References;
use crate::data::batch::{BatchError, Batching, Compared, Comparison, MicroBatch, Sample, Step, StepPlan};
use crate::data::compare::mismatched;
use crate::data::teacher::TeacherRows;
use crate::recipe::Recipe;
use crate::train::TrainError;
use crate::train::objective::{Objective, Preference};

/// The comparison of samples: objective, answers to other prompts, and reference.
#[derive(Default)]
pub struct Comparing {
    /// The objective.
    pub objective: Objective,
    /// The prompt of each sample with another answer; empty if the objective needs none.
    pub mismatched: Vec<Sample>,
    /// Log-probabilities under the reference, once they are known.
    pub references: OnceLock<References>,
    /// Room for the teacher's distributions, for objectives that have a teacher.
    pub room: Option<Arc<TeacherRows>>,
    /// The teacher's probabilities, once they are known.
    pub lessons: OnceLock<Lessons>,
}

impl Comparing {
    /// The comparison of `samples` that the recipe asks for.
    pub fn new(recipe: &Recipe, samples: &[Sample]) -> Comparing {
        let objective = super::objective(recipe);
        let needs_mismatched = objective.preference().is_some_and(Preference::needs_mismatched);
        let rows = recipe.train.batch_size.saturating_mul(recipe.train.gradient_accumulation_steps);
        let mismatched = match needs_mismatched {
            true => mismatched(samples, rows, recipe.data.row()),
            false => Vec::new(),
        };
        Comparing { objective, mismatched, ..Comparing::default() }
    }

    /// Lays samples end to end.
    pub fn pack<'a>(&self, samples: impl IntoIterator<Item = &'a Sample>) -> MicroBatch {
        let packed = match self.objective.preference().is_some_and(Preference::trains_prompts) {
            true => MicroBatch::pack_with_prompts(samples),
            false => MicroBatch::pack(samples),
        };
        MicroBatch { teacher: self.room.clone(), ..packed }
    }

    /// Builds a step from its plan: indices into `samples`, one list per micro-batch.
    pub fn step(&self, samples: &[Sample], plan: &[Vec<usize>]) -> Step {
        if self.objective == Objective::CrossEntropy {
            return Step::new(samples, plan);
        }
        let pack = |indices: &Vec<usize>| self.pack(indices.iter().map(|&index| &samples[index]));
        let micro_batches: Vec<MicroBatch> = plan.iter().map(pack).collect();
        let loss_tokens = micro_batches.iter().map(|batch| batch.targets.len()).sum();
        let comparison = self.objective.preference().map(|_| self.comparison(samples, plan, &micro_batches));
        Step { micro_batches, loss_tokens, comparison, ..Step::default() }
    }

    /// Gives the micro-batches of a step what the teacher says, where it is known. The arguments are those of [`Comparing::step`].
    pub fn teach(&self, step: &mut Step, samples: &[Sample], plan: &[Vec<usize>]) -> Result<(), TrainError> {
        let Some(lessons) = self.lessons.get() else { return Ok(()) };
        for (batch, indices) in step.micro_batches.iter_mut().zip(plan) {
            let rows = lessons.rows(indices.iter().map(|&index| (index, &samples[index])))?;
            batch.teacher = Some(Arc::new(rows));
        }
        Ok(())
    }

    /// The prompts of the samples with other answers, packed as the samples are.
    pub fn mismatched_batches(&self, plan: &[Vec<usize>]) -> Vec<MicroBatch> {
        let pack =
            |indices: &Vec<usize>| MicroBatch::pack(indices.iter().filter_map(|&i| self.mismatched(i)));
        plan.iter().map(pack).filter(|batch| !batch.is_empty()).collect()
    }

    /// The prompt of a sample with another answer, if there is one and the length limit has left something of it.
    fn mismatched(&self, index: usize) -> Option<&Sample> {
        self.mismatched.get(index).filter(|sample| !sample.ids.is_empty())
    }

    fn comparison(&self, samples: &[Sample], plan: &[Vec<usize>], batches: &[MicroBatch]) -> Comparison {
        let rated = self.objective.preference().is_some_and(Preference::is_rated);
        let indices = || plan.iter().flatten().copied();
        let references = self.references.get();
        let reference = |index: usize| references.and_then(|r| r.samples.get(index)).copied().unwrap_or(0.0);
        let compared =
            indices().map(|index| Compared { side: samples[index].side, reference: reference(index) });
        let good: usize = (plan.iter().zip(batches))
            .map(|(plan, batch)| {
                let bad = plan.iter().map(|&index| &samples[index]).filter(|s| !s.side.is_good());
                batch.targets.len() - bad.map(Sample::loss_tokens).sum::<usize>()
            })
            .sum();
        let of_mismatched =
            |index: usize| references.and_then(|r| r.mismatched.get(index)).copied().unwrap_or(0.0);
        Comparison {
            samples: compared.collect(),
            units: if rated { indices().count() } else { indices().count() / 2 },
            good_tokens: good,
            mismatched: self.mismatched_batches(plan),
            mismatched_reference: indices()
                .filter(|&i| self.mismatched(i).is_some())
                .map(of_mismatched)
                .sum(),
        }
    }
}

/// Plans an epoch over units of samples that must share a row. Returns indices of samples.
pub(super) fn plan_units(
    batching: &Batching,
    samples: &[Sample],
    units: &[Range<usize>],
    epoch: u64,
) -> Result<Vec<StepPlan>, BatchError> {
    let length = |unit: &Range<usize>| samples[unit.clone()].iter().map(|sample| sample.ids.len()).sum();
    let lengths: Vec<usize> = units.iter().map(length).collect();
    let mut steps = batching.plan_epoch(&lengths, epoch)?;
    for batch in steps.iter_mut().flatten() {
        *batch = batch.iter().flat_map(|&unit| units[unit].clone()).collect();
    }
    Ok(steps)
}
