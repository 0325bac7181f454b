//! `[train]`: the optimization.

use serde::Serialize;

use super::error::RecipeError;
use super::fields::Section;
use super::objective::{self, ObjectiveKeys, ObjectiveName};
use super::values::{Switch, write_share};
use crate::model::plan::Share;
use crate::train::OptimizerKind;
use crate::train::schedule::LrScheduler;

/// `[train]`: the optimization.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Train {
    /// Seed of the adapter's initial values, the sample order and the dropout masks.
    pub seed: u64,
    /// Passes over the training samples, unless `max_steps` is set.
    pub epochs: usize,
    /// Number of optimizer steps; overrides `epochs`, as in transformers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<usize>,
    /// The objective of training.
    #[serde(flatten)]
    pub objective: ObjectiveKeys,
    /// Rows per forward and backward pass.
    pub batch_size: usize,
    /// Forward and backward passes per optimizer step.
    pub gradient_accumulation_steps: usize,
    /// Shares of each step, each of which one process computes; if unset, as many as there are processes. Results depend on it by
    /// rounding alone, and not on the number of processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<usize>,
    /// The rule that turns gradients into updates.
    pub optimizer: OptimizerKind,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// AdamW's decay of the first moment, in `[0, 1)`.
    pub adam_beta1: f64,
    /// AdamW's decay of the second moment, in `[0, 1)`.
    pub adam_beta2: f64,
    /// Term that AdamW adds to its denominator for numerical stability.
    pub adam_epsilon: f64,
    /// Shape of the learning rate after the warm-up.
    pub lr_scheduler: LrScheduler,
    /// Lowest learning rate after the warm-up, as a fraction of the peak.
    pub min_lr_ratio: f64,
    /// Warm-up as a fraction of all optimizer steps; 0 where `warmup_steps` is set.
    pub warmup_ratio: f64,
    /// Warm-up in optimizer steps, instead of `warmup_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<usize>,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Gradients are clipped to this L2 norm over the whole adapter; 0 disables clipping.
    pub max_grad_norm: f64,
    /// Whether the backward pass recomputes activations instead of keeping them.
    pub gradient_checkpointing: Switch,
    /// GiB of GPU memory that the plan may use, with `gradient_checkpointing = "auto"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<f64>,
    /// Whether the experts of a mixture stay in host memory and are copied to the device layer by layer. With `Auto`, those of as many
    /// layers as makes the run within `memory_limit` fastest.
    pub offload_experts: Switch,
    /// Layers whose other matrices do likewise.
    #[serde(serialize_with = "write_share")]
    pub offload_layers: Share,
    /// Whether the inputs of layers are copied to host memory in forward, and back in backward.
    pub offload_inputs: Switch,
    /// Number of steps with an infinite loss or gradient that are skipped before the run stops.
    pub max_skipped_steps: usize,
    /// Whether the run stops when its loss has risen far above its start.
    pub stop_if_diverged: bool,
}

impl Train {
    pub(super) fn read(section: &Section) -> Result<Train, RecipeError> {
        let next = section.continuable();
        let harmless = section.harmless();
        // The optimizer computes in f32, where a number close to 1 is 1 and one close to 0 is 0.
        let beta = |key, default| {
            next.number(key, default, "a number from 0 to below 1", |x| x >= 0.0 && (x as f32) < 1.0)
        };
        let warmup_steps = next.optional_count("warmup_steps", 0)?;
        let warmup_ratio = next.fraction("warmup_ratio", if warmup_steps.is_some() { 0.0 } else { 0.05 })?;
        if warmup_steps.is_some() && warmup_ratio > 0.0 {
            return Err(section
                .conflict("warmup_ratio", "`warmup_steps` already sets the warm-up; remove one of the two"));
        }
        let gradient_checkpointing = harmless.switch("gradient_checkpointing")?;
        let memory_limit =
            section.has("memory_limit").then(|| harmless.positive("memory_limit", 1.0)).transpose()?;
        if memory_limit.is_some() && gradient_checkpointing != Switch::Auto {
            let message = "`gradient_checkpointing` already decides what is kept; remove one of the two";
            return Err(section.conflict("memory_limit", message));
        }
        let accumulation = section.count("gradient_accumulation_steps", 1, 1)?;
        let objective = objective::keys(section)?;
        Ok(Train {
            seed: section.integer("seed", 42, 0)?,
            epochs: next.count("epochs", 3, 1)?,
            max_steps: next.optional_count("max_steps", 1)?,
            objective,
            batch_size: section.count(
                "batch_size",
                if objective.name == ObjectiveName::Grpo { 8 } else { 1 },
                1,
            )?,
            gradient_accumulation_steps: accumulation,
            shares: shares(section, accumulation)?,
            optimizer: section.choice("optimizer", OptimizerKind::Adamw)?,
            learning_rate: next.positive("learning_rate", rate(objective.name))?,
            adam_beta1: beta("adam_beta1", 0.9)?,
            adam_beta2: beta("adam_beta2", 0.999)?,
            adam_epsilon: next.number(
                "adam_epsilon",
                1e-8,
                "a number >= 1e-30, which f32 holds, and <= 1",
                |x| (1e-30..=1.0).contains(&x),
            )?,
            lr_scheduler: next.choice("lr_scheduler", LrScheduler::Cosine)?,
            min_lr_ratio: next.fraction("min_lr_ratio", 0.0)?,
            warmup_ratio,
            warmup_steps,
            weight_decay: next.not_negative("weight_decay", 0.0)?,
            max_grad_norm: next.not_negative("max_grad_norm", 1.0)?,
            gradient_checkpointing,
            memory_limit,
            offload_experts: harmless.switch("offload_experts")?,
            offload_layers: harmless.share("offload_layers")?,
            offload_inputs: harmless.switch("offload_inputs")?,
            max_skipped_steps: harmless.count("max_skipped_steps", 0, 0)?,
            stop_if_diverged: harmless.boolean("stop_if_diverged", true)?,
        })
    }
}

/// The default learning rate of an objective.
fn rate(objective: ObjectiveName) -> f64 {
    match objective {
        ObjectiveName::Sft | ObjectiveName::Distill => 2e-4,
        ObjectiveName::Grpo => 5e-5,
        ObjectiveName::Dpo | ObjectiveName::Kto | ObjectiveName::Orpo | ObjectiveName::Simpo => 1e-5,
    }
}

fn shares(section: &Section, accumulation: usize) -> Result<Option<usize>, RecipeError> {
    let shares = section.optional_count("shares", 1)?;
    if shares.is_some_and(|shares| shares > accumulation) {
        let message = format!(
            "a step has only `gradient_accumulation_steps` = {accumulation} micro-batches; lower it, or raise that key"
        );
        return Err(section.conflict("shares", &message));
    }
    Ok(shares)
}
