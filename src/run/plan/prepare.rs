//! Everything that a run needs besides the base, planned ahead from recipe and samples.

use super::answers::{questions, with_answer};
use super::batches::{Batches, Planned};
use super::grpo::Setup;
use super::{Data, Identity, OpenBase, RunError, Steps, ValidationFile, references};
use crate::adapter::lora::Adapter;
use crate::data::batch::{Capacity, MicroBatch};
use crate::recipe::{DataFormat, Recipe};
use crate::talk::metrics::Question;
use crate::train::objective::{Grpo, Preference};
use crate::train::{TrainError, Trainer};

/// Samples, steps and prompts of a run.
pub struct PreparedRun {
    /// The samples.
    pub data: Data,
    /// The validation samples, packed.
    pub validation: Vec<ValidationFile>,
    /// All optimizer steps.
    pub steps: Steps,
    /// Settings, sizes and rewards of an objective that learns from rewards.
    pub grpo: Option<Setup>,
    /// The prompts of `eval.samples`, as text and as token ids.
    pub prompts: Vec<(String, Vec<u32>)>,
    /// General questions that are answered after the last step, as text and as token ids.
    pub general: Vec<(String, Vec<u32>)>,
    /// The questions of `eval.metrics`.
    pub questions: Vec<Question>,
    /// The capacity that the trainer needs.
    pub capacity: Capacity,
    /// Warnings about the recipe.
    pub advice: Vec<String>,
    /// Positions that the model needs: those of the longest row, or of a prompt with its reply.
    pub positions: usize,
}

impl PreparedRun {
    /// Plans every step of `recipe` over `data`.
    pub fn plan(recipe: &Recipe, base: &OpenBase, mut data: Data) -> Result<PreparedRun, RunError> {
        let mut steps = Steps::plan_weighted(recipe, &data.train, &data.weights)?;
        super::distill::teacher::check_contexts(recipe, &data.train)?;
        let grpo = Setup::of(recipe, &data)?;
        // Prompts have no loss: an evaluation completes them.
        let mut validation = if grpo.is_some() { Vec::new() } else { data.validation_files(recipe)? };
        let room = super::distill::room::room(recipe, base.base.config().vocab);
        validation.iter_mut().for_each(|file| file.comparing.room = room.clone());
        steps.comparing.room = room;
        if recipe.eval.early_stopping_patience > 0 && data.validation.is_empty() {
            return Err(RunError::Conflict(
                "eval.early_stopping_patience needs validation samples: set data.valid or data.val_size, or remove it"
                    .into(),
            ));
        }
        // A model that learns plain text is asked to continue the prompts as they stand.
        let plain = recipe.data.format == DataFormat::Text;
        let render = |text: &String| {
            let ids = match plain {
                true => base.continuation(text),
                false => base.prompt_after(recipe.data.system.as_deref(), text).map_err(RunError::Prompt)?,
            };
            Ok((text.clone(), ids))
        };
        let prompts = recipe.eval.samples.iter().map(render).collect::<Result<Vec<_>, RunError>>()?;
        let longest =
            prompts.iter().map(|(_, ids)| ids.len() + recipe.eval.max_new_tokens).max().unwrap_or(0);
        let (questions, notice) = questions(recipe, base, &data)?;
        data.notices.extend(notice);
        let context = base.base.config().context_length;
        if longest > context {
            return Err(RunError::Conflict(format!(
                "the longest of eval.samples needs {longest} tokens with its reply, but {} has a context of {context}; \
                 shorten it or lower eval.max_new_tokens",
                base.base.name()
            )));
        }
        let general = super::general::questions(recipe, base);
        let of_general = general.iter().map(|(_, ids)| ids.len() + super::general::longest(recipe));
        let reply = of_general.chain([longest, with_answer(recipe, &questions)]).max().unwrap_or(0);
        let sequences = super::answers::together(&[prompts.len(), questions.len(), general.len()], reply);
        let mut capacity =
            Capacity { reply, sequences, ..Planned { steps: &steps, samples: &data.train }.bound() };
        validation.iter().for_each(|file| file.include(&mut capacity));
        grpo.iter().for_each(|setup| setup.include(&mut capacity));
        let positions = reply.max(recipe.data.row()).max(capacity.sequences.context);
        let advice = super::advice::advice(recipe, &base.base, &data, &steps);
        Ok(PreparedRun {
            data,
            validation,
            steps,
            grpo,
            prompts,
            general,
            questions,
            capacity,
            positions,
            advice,
        })
    }

    /// Whether the objective compares with a reference.
    pub fn needs_reference(&self) -> bool {
        self.steps.comparing.objective.preference().is_some_and(Preference::needs_reference)
    }

    /// Whether a step uses each training sample.
    pub(in crate::run) fn used(&self) -> Vec<bool> {
        let mut used = vec![false; self.data.train.len()];
        self.steps.plans.iter().flatten().flatten().for_each(|&index| used[index] = true);
        used
    }

    /// The samples of the steps.
    pub fn batches(&self) -> Planned<'_> {
        Planned { steps: &self.steps, samples: &self.data.train }
    }

    /// Micro-batches that need as much device memory as any.
    pub fn largest(&self) -> Vec<MicroBatch> {
        match &self.grpo {
            Some(setup) => vec![setup.largest()],
            None => self.batches().largest(),
        }
    }

    /// Number of replies and answers of an evaluation.
    pub fn replies(&self) -> usize {
        self.prompts.len() + self.questions.len()
    }

    /// Digests of base and samples, and of the adapter `initial` if it is the reference.
    pub fn identity(&self, base: &OpenBase, initial: &Adapter) -> Identity {
        let grpo = self.steps.comparing.objective.grpo();
        let refers = self.needs_reference() || grpo.is_some_and(Grpo::needs_reference);
        let identity = Identity::of(&base.base, &self.data.train, &self.data.weights, &self.data.validation);
        Identity { initial: refers.then(|| references::digest(initial)), ..identity }
    }

    /// Runs the largest batches once, so that out-of-memory errors and overflows occur before the first step. Returns the
    /// tokens of the longest batch.
    pub async fn try_longest(&self, trainer: &Trainer<'_>) -> Result<usize, TrainError> {
        let largest = self.largest();
        let found = trainer.dry_pass(&largest).await?;
        if found.not_finite > 0 {
            return Err(TrainError::LongestNotFinite { rows: found.not_finite, tokens: found.tokens });
        }
        Ok(largest.iter().map(MicroBatch::len).max().unwrap_or(0))
    }
}
