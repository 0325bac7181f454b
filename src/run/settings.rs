//! From the recipe's keys to the settings of the modules below.

use crate::adapter::WriteOptions;
use crate::model::plan::{Offload, Recompute};
use crate::ops::adamw::AdamW;
use crate::recipe::{Recipe, Switch};
use crate::train::schedule::Schedule;
use crate::train::{Dropout, Optimizer, OptimizerKind};

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

/// Which experts stay in host memory. In a browser, which has too little of it, none do.
pub fn offload(recipe: &Recipe) -> Offload {
    match recipe.train.offload_experts {
        _ if cfg!(target_arch = "wasm32") => Offload::Never,
        Switch::Auto => Offload::Auto,
        Switch::On => Offload::All,
        Switch::Off => Offload::Never,
    }
}

/// The recipe's dropout.
pub fn dropout(recipe: &Recipe) -> Dropout {
    Dropout { probability: recipe.lora.dropout, seed: recipe.train.seed }
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

/// The metadata in the files of an adapter that `recipe` trained on the base with this fingerprint.
pub fn write_options<'a>(recipe: &'a Recipe, fingerprint: &'a str) -> WriteOptions<'a> {
    WriteOptions {
        base_model: recipe.output.base_model_name.as_deref().unwrap_or(&recipe.model.base),
        dropout: recipe.lora.dropout,
        fingerprint: Some(fingerprint),
    }
}
