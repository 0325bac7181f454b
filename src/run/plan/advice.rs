//! Warnings about a recipe that runs, but rarely does what its author wants.

use super::{Data, Steps};
use crate::base::Base;
use crate::data::compare::{Side, units};
use crate::recipe::Recipe;
use crate::train::OptimizerKind;
use crate::words::counted;

/// Steps below which a number of epochs is probably a mistake.
pub(super) const FEW_STEPS: usize = 10;
/// From this width on, a model is not a toy, and large learning rates destroy what it knows.
const WIDE: usize = 1024;

/// Warnings before the first step.
pub fn advice(recipe: &Recipe, base: &Base, data: &Data, steps: &Steps) -> Vec<String> {
    let balance = balance(recipe, data);
    [
        learning_rate(recipe, base.config().width),
        few_steps(recipe, data, steps),
        keep_best(recipe, data),
        balance,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The learning rates that are usual for LoRA with this optimizer: a rate beyond them is probably a mistake.
fn usual(optimizer: OptimizerKind, width: usize) -> (f64, f64) {
    match optimizer {
        OptimizerKind::Adamw if width >= WIDE => (1e-6, 2e-3),
        OptimizerKind::Adamw => (1e-6, 2e-2),
        OptimizerKind::Sgd => (1e-3, 10.0),
    }
}

/// A learning rate to try instead of one with which the loss rose.
pub fn lower_rate(recipe: &Recipe, base: &Base) -> f64 {
    let width = base.config().width;
    let rate = recipe.train.learning_rate;
    match (rate > usual(recipe.train.optimizer, width).1, recipe.train.optimizer) {
        (false, _) => rate / 10.0,
        (true, OptimizerKind::Sgd) => 0.1,
        (true, OptimizerKind::Adamw) if width >= WIDE => 1e-4,
        (true, OptimizerKind::Adamw) => 4e-3,
    }
}

fn learning_rate(recipe: &Recipe, width: usize) -> Option<String> {
    let train = &recipe.train;
    let (low, high) = usual(train.optimizer, width);
    let (problem, rate) = match train.learning_rate {
        rate if rate > high => ("very high: the loss will probably rise", rate),
        rate if rate < low => ("very low: the adapter will hardly change", rate),
        _ => return None,
    };
    let name = match train.optimizer {
        OptimizerKind::Adamw => "adamw",
        OptimizerKind::Sgd => "sgd",
    };
    let rate = if rate >= 0.01 { rate.to_string() } else { format!("{rate:e}") };
    Some(format!(
        "train.learning_rate = {rate} is {problem}; with {name}, rates from {low:e} to {high:e} are usual"
    ))
}

/// The numbers of good and bad answers. The weights should make up for a difference: Ethayarajh et al. 2024, equation 8, as in
/// TRL's `KTOTrainer._prepare_dataset`.
fn balance(recipe: &Recipe, data: &Data) -> Option<String> {
    let count = |side: Side| data.train.iter().filter(|sample| sample.side == side).count() as f64;
    let (good, bad) = (count(Side::Desirable), count(Side::Undesirable));
    let keys = &recipe.train.objective;
    let (weight, other) = (keys.desirable_weight?, keys.undesirable_weight?);
    if good == 0.0 || bad == 0.0 {
        let missing = if good == 0.0 { "good" } else { "bad" };
        return Some(format!("no training sample is rated {missing}: the model cannot learn the difference"));
    }
    let ratio = weight * good / (other * bad);
    if (1.0 / 1.33..=1.33).contains(&ratio) {
        return None;
    }
    let [low, high] = [1.0, 1.33].map(|part| part * other * bad / good);
    Some(format!(
        "{good} training samples are rated good and {bad} bad, with the weights {weight} and {other}: set train.desirable_weight \
         to between {low:.2} and {high:.2}, so that both count about the same"
    ))
}

fn few_steps(recipe: &Recipe, data: &Data, steps: &Steps) -> Option<String> {
    let planned = steps.plans.len();
    if recipe.train.max_steps.is_some() || planned >= FEW_STEPS {
        return None;
    }
    let samples = counted(units(&data.train).len(), "sample");
    let mut ways = vec!["raise train.epochs"];
    if recipe.train.gradient_accumulation_steps > 1 {
        ways.push("lower train.gradient_accumulation_steps");
    }
    if recipe.train.batch_size > 1 {
        ways.push("lower train.batch_size");
    }
    if recipe.data.packing && data.train.len() > planned {
        ways.push("lower data.max_seq_len, so that fewer samples share a row");
    }
    Some(format!(
        "{} of {samples} are only {}, too few to learn much; {}",
        counted(recipe.train.epochs, "epoch"),
        counted(planned, "step"),
        ways.join(", or ")
    ))
}

fn keep_best(recipe: &Recipe, data: &Data) -> Option<String> {
    let split = recipe.data.val_size > 0.0 || !recipe.data.valid.is_empty();
    (recipe.eval.keep_best && data.validation.is_empty() && split).then(|| {
        "there are no validation samples, so eval.keep_best has no effect: the last adapter is kept".into()
    })
}
