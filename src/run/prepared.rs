//! Everything that a run needs beside the base, made of the recipe and the samples.

use super::{Data, Frozen, RunError, Steps, ValidationFile, capacity, largest};
use crate::data::batch::MicroBatch;
use crate::recipe::Recipe;
use crate::train::trainer::{Capacity, TrainError, Trainer};

/// Samples, steps and prompts of a run.
pub struct Prepared {
    /// The samples.
    pub data: Data,
    /// Those for validation, packed.
    pub validation: Vec<ValidationFile>,
    /// Every step.
    pub steps: Steps,
    /// The prompts of `eval.samples`, as text and as ids.
    pub prompts: Vec<(String, Vec<u32>)>,
    /// What a trainer must hold.
    pub capacity: Capacity,
    /// Positions that the model is asked for: of the longest row, or of a prompt with its reply.
    pub positions: usize,
}

impl Prepared {
    /// Plans every step of `recipe` over `data`.
    pub fn plan(recipe: &Recipe, frozen: &Frozen, data: Data) -> Result<Prepared, RunError> {
        let steps = Steps::plan_weighted(recipe, &data.train, &data.weights)?;
        let validation = data.validation_files(recipe)?;
        if recipe.eval.early_stopping_patience > 0 && data.validation.is_empty() {
            return Err(RunError::Conflict(
                "eval.early_stopping_patience needs validation samples: set data.valid or data.val_size, or remove it"
                    .into(),
            ));
        }
        let render = |text: &String| Ok((text.clone(), frozen.prompt(text).map_err(RunError::Prompt)?));
        let prompts = recipe.eval.samples.iter().map(render).collect::<Result<Vec<_>, RunError>>()?;
        let longest =
            prompts.iter().map(|(_, ids)| ids.len() + recipe.eval.max_new_tokens).max().unwrap_or(0);
        let context = frozen.base.config().context_length;
        if longest > context {
            return Err(RunError::Conflict(format!(
                "the longest of eval.samples needs {longest} positions with its reply, {} was trained for {context}; \
                 shorten it or lower eval.max_new_tokens",
                frozen.base.name()
            )));
        }
        let capacity = capacity(&steps, &data.train, &validation);
        let positions = longest.max(recipe.data.max_seq_len);
        Ok(Prepared { data, validation, steps, prompts, capacity, positions })
    }

    /// Runs the largest batches once, so that what the device cannot do shows before the first step; the tokens of the longest.
    pub async fn try_longest(&self, trainer: &Trainer<'_>) -> Result<usize, TrainError> {
        let largest = largest(&self.steps, &self.data.train);
        let found = trainer.dry_pass(&largest).await?;
        if found.not_finite > 0 {
            return Err(TrainError::LongestNotFinite { rows: found.not_finite, tokens: found.tokens });
        }
        Ok(largest.iter().map(MicroBatch::len).max().unwrap_or(0))
    }
}
