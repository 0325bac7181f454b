//! Planning every optimizer step of a run ahead.

use super::RunError;
use super::compare::{Comparing, plan_units};
use super::settings::batching;
use crate::data::batch::{Sample, Step, StepPlan, draw};
use crate::data::compare::units;
use crate::recipe::Recipe;
use crate::train::TrainError;
use crate::train::schedule::Schedule;
use crate::words;

/// Most steps of a run. Every step is planned ahead, and no adapter needs more.
const MOST_STEPS: usize = 1_000_000;

/// All optimizer steps of a run.
pub struct Steps {
    /// Sample indices of each step, in order, epoch after epoch.
    pub plans: Vec<StepPlan>,
    /// The learning rate of each step.
    pub schedule: Schedule,
    /// The samples' comparison, for objectives that compare them.
    pub comparing: Comparing,
}

impl Steps {
    /// Plans `epochs` epochs, or as many as `max_steps` needs.
    pub fn plan(recipe: &Recipe, samples: &[Sample]) -> Result<Steps, RunError> {
        Steps::plan_weighted(recipe, samples, &vec![1.0; samples.len()])
    }

    /// Plans as [`Steps::plan`] does, with epochs that show each sample `weights` times; see [`draw`].
    pub fn plan_weighted(recipe: &Recipe, samples: &[Sample], weights: &[f64]) -> Result<Steps, RunError> {
        let batching = batching(recipe);
        let units = units(samples);
        let weights: Vec<f64> = units.iter().map(|unit| weights[unit.start]).collect();
        let mut plans = Vec::new();
        let mut epoch = 0;
        let too_many = |key: &str, value: usize| {
            let most = words::grouped(MOST_STEPS, ' ');
            RunError::Conflict(format!("{key} = {value}: a run has at most {most} steps; lower it"))
        };
        if let Some(most) = recipe.train.max_steps.filter(|&most| most > MOST_STEPS) {
            return Err(too_many("train.max_steps", most));
        }
        while recipe.train.max_steps.map_or(epoch < recipe.train.epochs, |max| plans.len() < max) {
            let drawn = draw(&weights, recipe.train.seed, epoch as u64);
            let drawn: Vec<_> = drawn.into_iter().map(|index| units[index].clone()).collect();
            let steps = plan_units(&batching, samples, &drawn, epoch as u64)?;
            if steps.is_empty() {
                return Err(RunError::Conflict(
                    "data.sources: the weights are so low that an epoch has no samples; raise them".into(),
                ));
            }
            // Steps with the same completions have the same prompts.
            let repeats = recipe.grpo.as_ref().map_or(1, |keys| keys.num_iterations);
            plans.extend(steps.into_iter().flat_map(|step| std::iter::repeat_n(step, repeats)));
            epoch += 1;
            if recipe.train.max_steps.is_none() && plans.len() > MOST_STEPS {
                return Err(too_many("train.epochs", recipe.train.epochs));
            }
        }
        plans.truncate(recipe.train.max_steps.unwrap_or(usize::MAX));
        let schedule = super::schedule(recipe, plans.len());
        Ok(Steps { plans, schedule, comparing: Comparing::new(recipe, samples) })
    }

    /// Builds step `index`, from 0.
    pub fn step(&self, samples: &[Sample], index: usize) -> Step {
        self.comparing.step(samples, &self.plans[index])
    }

    /// Builds step `index`, from 0, with what the teacher says, where it is known.
    pub fn taught(&self, samples: &[Sample], index: usize) -> Result<Step, TrainError> {
        let mut step = self.step(samples, index);
        self.comparing.teach(&mut step, samples, &self.plans[index])?;
        Ok(step)
    }

    /// Tokens that pass through the model in step `index`, from 0.
    pub fn tokens(&self, samples: &[Sample], index: usize) -> usize {
        self.plans[index].iter().flatten().map(|&sample| samples[sample].ids.len()).sum()
    }
}
