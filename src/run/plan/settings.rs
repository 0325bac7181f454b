//! From the recipe's keys to the settings of the modules below.

use super::RunError;
use crate::adapter::WriteOptions;
use crate::data::batch::Batching;
use crate::data::compare::Supervision;
use crate::model::plan::{Offload, Recompute, Share};
use crate::ops::adamw::AdamW;
use crate::recipe::{
    self, DivergenceName, GrpoLossType, ImportanceSamplingLevel, LossType, ObjectiveKeys, ObjectiveName,
    Recipe, Switch,
};
use crate::train::objective::{
    Distill, Divergence, Grpo, GrpoLoss, Level, Objective, Preference, PreferenceLoss,
};
use crate::train::schedule::Schedule;
use crate::train::{Dropout, Optimizer, OptimizerKind};
use crate::words;

/// The recipe's optimizer.
pub fn optimizer(recipe: &Recipe) -> Optimizer {
    let train = &recipe.train;
    let adam = AdamW {
        beta1: train.adam_beta1,
        beta2: train.adam_beta2,
        epsilon: train.adam_epsilon,
        weight_decay: train.weight_decay,
    };
    Optimizer {
        adam: (train.optimizer == OptimizerKind::Adamw).then_some(adam),
        weight_decay: train.weight_decay,
        max_grad_norm: train.max_grad_norm,
    }
}

/// With `gradient_checkpointing = "auto"`, up to this many bytes of activations are kept.
const KEEP_UP_TO: u64 = 4 << 30;

/// Which activations the recipe keeps and which it recomputes.
pub fn recompute(recipe: &Recipe) -> Recompute {
    match recipe.train.gradient_checkpointing {
        Switch::Auto => match recipe.train.memory_limit {
            Some(gib) => Recompute::Within((gib * f64::from(1 << 30)) as u64),
            None => Recompute::Keep(KEEP_UP_TO),
        },
        Switch::On => Recompute::Always,
        Switch::Off => Recompute::Never,
    }
}

/// Everything that may stay in host memory. In a browser, which has too little of it, nothing does.
pub fn offload(recipe: &Recipe) -> Offload {
    if cfg!(target_arch = "wasm32") {
        return Offload::NEVER;
    }
    let share = |switch: Switch| match switch {
        Switch::Auto => Share::Auto,
        Switch::On => Share::All,
        Switch::Off => Share::Never,
    };
    let train = &recipe.train;
    let (experts, inputs) = (share(train.offload_experts), share(train.offload_inputs));
    Offload { experts, layers: train.offload_layers, inputs }
}

/// The recipe's objective.
pub fn objective(recipe: &Recipe) -> Objective {
    match (&recipe.distill, &recipe.grpo) {
        (Some(keys), _) => Objective::Distill(distill(keys)),
        (_, Some(keys)) => Objective::Grpo(grpo(keys)),
        _ => objective_of(&recipe.train.objective),
    }
}

/// The loss that `[distill]` sets.
fn distill(keys: &recipe::Distill) -> Distill {
    let divergence = match (keys.divergence, keys.beta.unwrap_or(0.5)) {
        (DivergenceName::ForwardKl, _) => Divergence::ForwardKl,
        (DivergenceName::ReverseKl, _) => Divergence::ReverseKl,
        // As in TRL.
        (DivergenceName::Jsd, 0.0) => Divergence::ForwardKl,
        (DivergenceName::Jsd, 1.0) => Divergence::ReverseKl,
        (DivergenceName::Jsd, beta) => Divergence::Jsd { beta },
    };
    let recipe::Distill { temperature, weight, sft_weight, .. } = *keys;
    Distill { divergence, temperature, weight, sft_weight }
}

/// The loss that `[grpo]` sets.
fn grpo(keys: &recipe::Grpo) -> Grpo {
    Grpo {
        loss: match keys.loss_type {
            GrpoLossType::Dapo => GrpoLoss::Dapo,
            GrpoLossType::Grpo => GrpoLoss::Grpo,
            GrpoLossType::Bnpo => GrpoLoss::Bnpo,
            GrpoLossType::DrGrpo => GrpoLoss::DrGrpo,
            GrpoLossType::Cispo => GrpoLoss::Cispo,
        },
        level: match keys.importance_sampling_level {
            ImportanceSamplingLevel::Token => Level::Token,
            ImportanceSamplingLevel::Sequence => Level::Sequence,
        },
        epsilon: keys.epsilon,
        epsilon_high: keys.epsilon_high,
        delta: keys.delta,
        beta: keys.beta,
        temperature: keys.temperature,
        max_completion_length: keys.max_completion_length,
    }
}

/// The objective that `keys` set.
pub fn objective_of(keys: &ObjectiveKeys) -> Objective {
    let weights = [keys.desirable_weight.unwrap_or(1.0), keys.undesirable_weight.unwrap_or(1.0)];
    let loss = match (keys.name, keys.loss_type) {
        (ObjectiveName::Sft, _) => return Objective::CrossEntropy,
        // Its settings are in a section of its own.
        (ObjectiveName::Distill, _) => {
            let divergence = Divergence::ForwardKl;
            return Objective::Distill(Distill {
                divergence,
                temperature: 1.0,
                weight: 1.0,
                sft_weight: 0.0,
            });
        }
        // Its settings are in a section of its own, and its samples are made during the run.
        (ObjectiveName::Grpo, _) => return Objective::CrossEntropy,
        (ObjectiveName::Dpo, Some(LossType::Ipo)) => PreferenceLoss::Ipo,
        (ObjectiveName::Dpo, Some(LossType::ApoZero)) => PreferenceLoss::ApoZero,
        (ObjectiveName::Dpo, _) => {
            PreferenceLoss::Sigmoid { label_smoothing: keys.label_smoothing.unwrap_or(0.0) }
        }
        (ObjectiveName::Kto, Some(LossType::ApoZeroUnpaired)) => PreferenceLoss::ApoZeroUnpaired { weights },
        (ObjectiveName::Kto, _) => PreferenceLoss::Kto { weights },
        (ObjectiveName::Orpo, _) => PreferenceLoss::Orpo,
        (ObjectiveName::Simpo, _) => PreferenceLoss::Simpo { gamma: keys.simpo_gamma.unwrap_or(0.5) },
    };
    let (beta, sft_weight) = (keys.beta.unwrap_or(0.1), keys.sft_weight.unwrap_or(0.0));
    Objective::Preference(Preference { loss, beta, sft_weight })
}

/// The recipe's dropout.
pub fn dropout(recipe: &Recipe) -> Dropout {
    Dropout { probability: recipe.lora.dropout, seed: recipe.train.seed }
}

/// Shares of each step, which `processes` compute together. Fails if they cannot divide them evenly.
pub fn shares(recipe: &Recipe, processes: usize) -> Result<usize, RunError> {
    let accumulation = recipe.train.gradient_accumulation_steps;
    match recipe.train.shares {
        None if processes > accumulation => Err(RunError::Conflict(format!(
            "{processes} processes were started, but a step has train.gradient_accumulation_steps = {accumulation}, so some would have \
             nothing to do; set it to {processes} or a multiple, or start fewer processes"
        ))),
        Some(shares) if !shares.is_multiple_of(processes) => {
            let fitting = (1..=shares).filter(|n| shares.is_multiple_of(*n)).map(|n| n.to_string());
            let fitting: Vec<String> = fitting.collect();
            Err(RunError::Conflict(format!(
                "{processes} processes were started, but the steps of this run have {shares} shares (train.shares), which {processes} does \
                 not divide; start {} processes, or start over with other shares",
                words::either(&fitting)
            )))
        }
        shares => Ok(shares.unwrap_or(processes)),
    }
}

/// The learning-rate schedule of a run with `total_steps` optimizer steps.
pub fn schedule(recipe: &Recipe, total_steps: usize) -> Schedule {
    let train = &recipe.train;
    let from_ratio = Schedule::warmup_steps(train.warmup_ratio, total_steps);
    Schedule {
        shape: train.lr_scheduler,
        peak: train.learning_rate,
        min_lr_ratio: train.min_lr_ratio,
        warmup_steps: train.warmup_steps.unwrap_or(from_ratio),
        total_steps,
    }
}

/// The metadata in the files of an adapter that `recipe` trained on the base with this fingerprint and digest of the vocabulary.
#[must_use]
pub fn write_options<'a>(recipe: &'a Recipe, fingerprint: &'a str, vocabulary: &'a str) -> WriteOptions<'a> {
    WriteOptions {
        base_model: recipe.output.base_model_name.as_deref().unwrap_or(&recipe.model.base),
        dropout: recipe.lora.dropout,
        fingerprint: Some(fingerprint),
        vocabulary: Some(vocabulary),
    }
}

pub(super) fn batching(recipe: &Recipe) -> Batching {
    let train = &recipe.train;
    if let Some(keys) = &recipe.grpo {
        // A row is a prompt, and a step has as many as their completions fill.
        let prompts = train.batch_size * train.gradient_accumulation_steps / keys.num_generations;
        return Batching {
            batch_size: prompts,
            gradient_accumulation_steps: 1,
            max_seq_len: row_limit(recipe),
            packing: false,
            shuffle: recipe.data.shuffle,
            seed: train.seed,
        };
    }
    Batching {
        batch_size: train.batch_size,
        gradient_accumulation_steps: train.gradient_accumulation_steps,
        max_seq_len: row_limit(recipe),
        packing: recipe.data.packing,
        shuffle: recipe.data.shuffle,
        seed: recipe.train.seed,
    }
}

/// The most tokens of a packed row. The two sides of a pair share one.
pub fn row_limit(recipe: &Recipe) -> usize {
    match recipe.train.objective.name.supervision() {
        Supervision::Pairs => recipe.data.row().saturating_mul(2),
        Supervision::Examples | Supervision::Ratings | Supervision::Prompts => recipe.data.row(),
    }
}
