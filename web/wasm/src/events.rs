//! Events of a run, as JavaScript gets them.

use std::collections::BTreeMap;

use rullama_train::run::RolloutLine;
use rullama_train::run::metrics::{StepMetrics, Timing};
use serde::Serialize;
use tsify::Tsify;

use crate::types::{Check, FileEntry, Scores};

/// A completion that was drawn, with its rewards.
#[derive(Clone, Serialize, Tsify)]
#[tsify(missing_as_null)]
pub struct Completion {
    /// The prompt; as JSON where the record has messages.
    pub prompt: String,
    pub completion: String,
    /// Number of tokens, with the end token.
    pub tokens: usize,
    /// Whether the model ended it.
    pub finished: bool,
    /// The value of each reward; null where it does not apply.
    #[tsify(type = "Record<string, number | null>")]
    pub rewards: BTreeMap<String, Option<f64>>,
    /// Their weighted sum; null where none applies.
    pub reward: Option<f64>,
    /// The advantage over the other completions of the prompt.
    pub advantage: f64,
}

impl From<&RolloutLine> for Completion {
    fn from(line: &RolloutLine) -> Completion {
        let rewards = line.rewards.iter().map(|(name, value)| (name.clone(), value.as_f64()));
        Completion {
            prompt: line.prompt.as_str().map_or_else(|| line.prompt.to_string(), str::to_owned),
            completion: line.completion.clone(),
            tokens: line.tokens,
            finished: line.finished,
            rewards: rewards.collect(),
            reward: line.reward,
            advantage: line.advantage,
        }
    }
}

/// Events of a run.
#[derive(Serialize, Tsify)]
#[serde(tag = "event", rename_all = "snake_case")]
#[tsify(missing_as_null)]
pub enum Event {
    /// `layers` of the `of` layers of the base are on the GPU.
    Loading {
        layers: usize,
        of: usize,
    },
    /// A phase besides the steps makes progress: `done` of `of` units.
    Phase {
        #[tsify(
            type = "\"reference\" | \"completions\" | \"rewards\" | \"validation\" | \"replies\" | \"answers\" | \"general\" | \"export\""
        )]
        phase: &'static str,
        done: usize,
        of: usize,
    },
    /// Sent once before the first step. `resumed_at`: steps that were taken before the checkpoint.
    Plan {
        resumed_at: usize,
        #[serde(flatten)]
        check: Check,
    },
    /// An optimizer step was taken, or skipped because a value in it was not finite.
    Step {
        /// Number of the step, from 1.
        step: usize,
        /// Mean loss before the update; null if it is not finite.
        loss: Option<f64>,
        /// Exponential moving average of the losses.
        smoothed: Option<f64>,
        accuracy: Option<f64>,
        /// Norm of the gradient before clipping.
        grad_norm: Option<f64>,
        /// L2 norm of the update, divided by that of the adapter.
        update_ratio: Option<f64>,
        learning_rate: f64,
        tokens: usize,
        skipped: bool,
        seconds: f64,
        tokens_per_second: f64,
        /// Reward of the chosen answers less that of the rejected ones, for objectives that compare answers.
        #[serde(rename = "rewards/margins")]
        margin: Option<f64>,
        /// Fraction of the pairs whose chosen answer has the higher reward.
        #[serde(rename = "rewards/accuracies")]
        ranked: Option<f64>,
        /// Measurements of completions under TRL's names, such as `reward`; empty for objectives that draw none.
        #[tsify(type = "Record<string, number>")]
        rewards: BTreeMap<String, f64>,
    },
    /// The best and the worst completions of a step, best first. Follows the step, if they were drawn for it.
    Completions {
        step: usize,
        best: Vec<Completion>,
        worst: Vec<Completion>,
    },
    /// Validation after `step` steps. `scores` is null without validation samples.
    Eval {
        step: usize,
        scores: Option<Scores>,
        best: bool,
        #[serde(rename = "eval_rewards/margins")]
        margin: Option<f64>,
        #[serde(rename = "eval_rewards/accuracies")]
        ranked: Option<f64>,
        /// Measurements of the completions of validation prompts, such as `eval_reward`; empty for objectives that draw none.
        #[tsify(type = "Record<string, number>")]
        rewards: BTreeMap<String, f64>,
    },
    /// A reply to one of the recipe's `eval.samples` after `step` steps.
    Sample {
        step: usize,
        prompt: String,
        reply: String,
    },
    /// A warning about the run.
    Notice {
        step: usize,
        notice: String,
    },
    /// The state after `step` steps, as files: `checkpoint-STEP/…`. Save them to resume later.
    Checkpoint {
        step: usize,
        files: Vec<FileEntry>,
    },
    /// The run waits until it is resumed.
    Paused {
        step: usize,
    },
    Resumed {
        step: usize,
    },
    /// The run has ended.
    Done {
        step: usize,
        /// The step of the adapter; with `eval.keep_best` not always the last.
        adapter_of_step: usize,
        /// Whether the run was stopped before its last step.
        stopped: bool,
        /// Why the final check refused the adapter; null if it passed. `adapter` holds it all the same.
        refused: Option<String>,
        /// The adapter as the files of a PEFT folder; null if no step was taken.
        adapter: Option<Vec<FileEntry>>,
        /// The output folder: every format of `output.export`, `report.html`, `metrics.jsonl`, `recipe.resolved.toml`.
        files: Vec<FileEntry>,
        /// Total time of the steps.
        seconds: f64,
    },
}

impl Event {
    pub fn of_step(step: &StepMetrics, timing: &Timing, smoothed: Option<f64>) -> Event {
        let &StepMetrics {
            step,
            loss,
            accuracy,
            grad_norm,
            update_ratio,
            learning_rate,
            tokens,
            skipped,
            preference,
            ref rewards,
        } = step;
        let &Timing { seconds, tokens_per_second, .. } = timing;
        Event::Step {
            step,
            loss,
            smoothed,
            accuracy,
            grad_norm,
            update_ratio,
            learning_rate,
            tokens,
            skipped,
            seconds,
            tokens_per_second,
            margin: preference.rewards_margins,
            ranked: preference.rewards_accuracies,
            rewards: rewards.clone(),
        }
    }
}
