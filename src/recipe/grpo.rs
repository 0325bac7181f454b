//! `[grpo]`: learning from rewards.

use serde::{Deserialize, Serialize};

use super::error::RecipeError;
use super::fields::Section;
use super::manual::REWARDS;
use super::objective::ObjectiveName;
use super::source::Source;
use super::{Data, Overlong, Recipe};
use crate::train::objective::advantages::ScaleRewards;

/// The loss of a token, and the divisor of their sum, under TRL's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrpoLossType {
    /// Clipped ratios, divided by the tokens of the step.
    #[default]
    Dapo,
    /// Clipped ratios, averaged over each completion first.
    Grpo,
    /// Clipped ratios, averaged over each micro-batch first.
    Bnpo,
    /// Clipped ratios, divided by the tokens that the completions could have.
    DrGrpo,
    /// Log-probabilities, weighed by bounded ratios.
    Cispo,
}

/// The unit that has one probability ratio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportanceSamplingLevel {
    /// A token.
    #[default]
    Token,
    /// A completion.
    Sequence,
}

/// `[grpo]`: completions, and the loss that their rewards give.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Grpo {
    /// Completions of each prompt.
    pub num_generations: usize,
    /// Most tokens of a completion.
    pub max_completion_length: usize,
    /// Divides the logits that tokens are drawn from, and those of the loss.
    pub temperature: f64,
    /// Tokens are drawn from the likeliest that together have this probability.
    pub top_p: f64,
    /// Tokens are drawn from this many of the likeliest; 0: all.
    pub top_k: usize,
    /// The form of the loss.
    pub loss_type: GrpoLossType,
    /// The unit that has one probability ratio.
    pub importance_sampling_level: ImportanceSamplingLevel,
    /// Ratios count down to 1 − this.
    pub epsilon: f64,
    /// Ratios count up to 1 + this; with `cispo` up to this.
    pub epsilon_high: f64,
    /// Bound on ratios where the advantage is negative.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delta: Option<f64>,
    /// Weight of the divergence from the adapter that training starts from.
    pub beta: f64,
    /// The standard deviation that divides differences from the mean reward of a prompt.
    pub scale_rewards: ScaleRewards,
    /// Whether completions that were cut at `max_completion_length` have no loss.
    pub mask_truncated_completions: bool,
    /// Optimizer steps with the same completions.
    pub num_iterations: usize,
}

const KEYS: [&str; 14] = [
    "num_generations",
    "max_completion_length",
    "temperature",
    "top_p",
    "top_k",
    "loss_type",
    "importance_sampling_level",
    "epsilon",
    "epsilon_high",
    "delta",
    "beta",
    "scale_rewards",
    "mask_truncated_completions",
    "num_iterations",
];

/// Reads the section; `None` where the objective is another one. Fails if it has keys then.
pub(super) fn read(section: &Section, objective: ObjectiveName) -> Result<Option<Grpo>, RecipeError> {
    // Every key is looked up, whatever the objective: the schema lists them.
    let epsilon =
        section.number("epsilon", 0.2, "a number from 0 to below 1", |x| (0.0..1.0).contains(&x))?;
    let delta = section.positive("delta", 2.0)?;
    let keys = Grpo {
        num_generations: section.count("num_generations", 8, 2)?,
        max_completion_length: section.count("max_completion_length", 512, 1)?,
        temperature: section
            .number("temperature", 1.0, "a number > 0, at most 100", |x| x > 0.0 && x <= 100.0)?,
        top_p: section.number("top_p", 1.0, "a number > 0, at most 1", |x| x > 0.0 && x <= 1.0)?,
        top_k: section.count("top_k", 0, 0)?,
        loss_type: section.choice("loss_type", GrpoLossType::Dapo)?,
        importance_sampling_level: section
            .choice("importance_sampling_level", ImportanceSamplingLevel::Token)?,
        epsilon,
        epsilon_high: section.not_negative("epsilon_high", epsilon)?,
        delta: section.has("delta").then_some(delta),
        beta: section.not_negative("beta", 0.0)?,
        scale_rewards: section.choice("scale_rewards", ScaleRewards::Group)?,
        mask_truncated_completions: section.boolean("mask_truncated_completions", false)?,
        num_iterations: section.count("num_iterations", 1, 1)?,
    };
    if objective != ObjectiveName::Grpo {
        let Some(key) = KEYS.iter().find(|key| section.has(key)) else { return Ok(None) };
        let text = format!(
            "the objective \"{}\" draws no completions; remove [grpo], or set train.objective = \"grpo\"",
            objective.name()
        );
        return Err(section.conflict(key, &text));
    }
    if keys.loss_type == GrpoLossType::Cispo && keys.delta.is_some() {
        return Err(
            section.conflict("delta", "the loss_type \"cispo\" clips no ratios; remove one of the two")
        );
    }
    Ok(Some(keys))
}

/// Fails if rewards and objective do not belong together.
pub(super) fn fits(source: &Source, recipe: &Recipe) -> Result<(), RecipeError> {
    let entry = source.entries.iter().find(|entry| entry.key == REWARDS);
    match (&recipe.grpo, entry.filter(|_| !recipe.rewards.is_empty())) {
        (Some(_), None) => Err(RecipeError::Missing {
            name: source.name(),
            key: REWARDS.into(),
            expected: "at least one table [[rewards]] with a name, such as \"number\": train.objective = \"grpo\" learns from them"
                .into(),
        }),
        (None, Some(entry)) => Err(RecipeError::Conflict {
            place: source.place(entry.origin),
            key: REWARDS.into(),
            message: format!(
                "the objective \"{}\" learns from no rewards; remove them, or set train.objective = \"grpo\"",
                recipe.train.objective.name.name()
            ),
        }),
        _ => Ok(()),
    }
}

/// Fails if the completions of a step are no whole groups, or if prompts would be cut.
pub(super) fn check(
    source: &Source,
    keys: &Grpo,
    data: &Data,
    [batch_size, accumulation]: [usize; 2],
) -> Result<(), RecipeError> {
    let (train, of_data) = (source.section("train"), source.section("data"));
    if data.overlong == Overlong::Truncate {
        let text = "a prompt without its end is another one; set it to \"drop\" or \"error\"";
        return Err(of_data.conflict("overlong", text));
    }
    let (all, group) = (batch_size.saturating_mul(accumulation), keys.num_generations);
    if all.is_multiple_of(group) {
        return Ok(());
    }
    let text = format!(
        "a step has train.batch_size · train.gradient_accumulation_steps = {all} completions, but each prompt has \
         grpo.num_generations = {group}; choose a multiple of {group}"
    );
    let key =
        ["gradient_accumulation_steps", "batch_size", "objective"].into_iter().find(|key| train.has(key));
    Err(train.conflict(key.unwrap_or("objective"), &text))
}
