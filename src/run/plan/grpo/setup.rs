//! Everything that learning from rewards needs besides base and samples.

use std::sync::Mutex;

use crate::data::batch::{Capacity, IGNORE, MicroBatch, Sample, Together};
use crate::data::rollout::Row;
use crate::recipe::{self, Recipe};
use crate::rewards::Rewards;
use crate::run::{Data, RunError};

/// The settings of `[grpo]`, the sizes of steps, and the rewards.
pub struct Setup {
    /// The settings.
    pub keys: recipe::Grpo,
    /// Seed of all draws.
    pub seed: u64,
    /// Completions of a micro-batch.
    pub batch_size: usize,
    /// Completions of a step.
    pub completions: usize,
    /// The tokens of the longest prompt.
    longest: Vec<u32>,
    /// The rewards.
    pub rewards: Mutex<Rewards>,
}

impl Setup {
    /// The settings of `recipe` for its prompts; `None` for another objective. Fails if a reward cannot be computed.
    pub fn of(recipe: &Recipe, data: &Data) -> Result<Option<Setup>, RunError> {
        let Some(keys) = recipe.grpo else { return Ok(None) };
        let conflict = |message: String| Err(RunError::Conflict(message));
        if !recipe.eval.metrics.is_empty() {
            return conflict(
                "eval.metrics compares answers with those of the samples, but train.objective = \"grpo\" has prompts alone; remove it: \
                 every evaluation reports the rewards"
                    .into(),
            );
        }
        let samples = || data.train.iter().chain(&data.validation);
        if let Some(sample) = samples().find(|sample| sample.row.is_none()) {
            return conflict(format!(
                "the sample of {} has no record, which the rewards of train.objective = \"grpo\" read; read it as a prompt",
                sample.origin
            ));
        }
        let longest = samples().max_by_key(|sample| sample.ids.len()).map(|sample| sample.ids.clone());
        let rewards =
            Rewards::open(&recipe.rewards).map_err(|error| RunError::Conflict(error.to_string()))?;
        let rows = samples().map(|sample| &row(sample).columns);
        rewards.check_columns(rows).map_err(|error| RunError::Conflict(error.to_string()))?;
        let batch_size = recipe.train.batch_size;
        Ok(Some(Setup {
            keys,
            seed: recipe.train.seed,
            batch_size,
            completions: batch_size * recipe.train.gradient_accumulation_steps,
            longest: longest.unwrap_or_default(),
            rewards: Mutex::new(rewards),
        }))
    }

    /// Most tokens of a prompt with its completion.
    pub fn longest(&self) -> usize {
        self.longest.len() + self.keys.max_completion_length
    }

    /// Grows to fit every step, and the sequences that are drawn at once.
    pub fn include(&self, capacity: &mut Capacity) {
        let of_batch = self.batch_size * self.keys.max_completion_length;
        capacity.tokens = capacity.tokens.max(self.batch_size * self.longest());
        capacity.longest = capacity.longest.max(self.longest());
        capacity.loss_tokens = capacity.loss_tokens.max(of_batch);
        capacity.step_loss_tokens =
            capacity.step_loss_tokens.max(self.completions * self.keys.max_completion_length);
        let context = self.longest().max(capacity.reply);
        capacity.sequences = Together { count: self.completions, context, comes_first: true };
    }

    /// A micro-batch that takes as much memory as any.
    pub fn largest(&self) -> MicroBatch {
        let completion = vec![*self.longest.last().unwrap_or(&0); self.keys.max_completion_length];
        let sample = with_completion(&self.longest, &completion, "the longest completion");
        MicroBatch::pack(std::iter::repeat_n(&sample, self.batch_size))
    }
}

/// A prompt and its completion, whose tokens have loss.
pub fn with_completion(prompt: &[u32], completion: &[u32], origin: &str) -> Sample {
    let mut labels = vec![IGNORE; prompt.len()];
    labels.extend(completion.iter().map(|&id| id as i32));
    Sample { ids: [prompt, completion].concat(), labels, origin: origin.into(), ..Sample::default() }
}

/// The record of a prompt.
pub fn row(sample: &Sample) -> &Row {
    sample.row.as_deref().expect("checked when the run was planned")
}
