//! Differences between the recipe of a stopped run and the recipe that resumes it.

use std::fmt;

use serde_json::Value;

use super::Recipe;

/// Sections that do not affect the result, except by the rounding of another device or other kernels.
const HARMLESS_SECTIONS: [&str; 4] = ["eval", "output", "log", "device"];

/// Keys of other sections that do not affect the result.
///
/// Base and samples are compared by digest, not by path. Recomputed activations are bit-identical to kept ones, and so are
/// results with experts in host memory. A memory limit that splits feed-forwards or attention into smaller pieces changes
/// gradients only by rounding.
const HARMLESS_KEYS: [&str; 18] = [
    "model.base",
    "model.fingerprint",
    "lora.allow_other_base",
    "data.train",
    "data.valid",
    "data.format",
    "data.fields",
    "data.max_file_size",
    "data.template",
    "data.train_on",
    "data.overlong",
    "data.invalid",
    "data.cache",
    "train.gradient_checkpointing",
    "train.memory_limit",
    "train.offload_experts",
    "train.max_skipped_steps",
    "train.stop_if_diverged",
];

/// Keys that a run may change between two steps: how far it goes, and how large its updates are. The adapter's shape and the
/// samples of the steps so far do not depend on them.
const CONTINUABLE_KEYS: [&str; 13] = [
    "lora.dropout",
    "train.epochs",
    "train.max_steps",
    "train.learning_rate",
    "train.lr_scheduler",
    "train.min_lr_ratio",
    "train.warmup_ratio",
    "train.warmup_steps",
    "train.weight_decay",
    "train.max_grad_norm",
    "train.adam_beta1",
    "train.adam_beta2",
    "train.adam_epsilon",
];

/// A key with its old and its new value, in TOML or JSON syntax.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// `section.key`.
    pub key: String,
    /// Value in the earlier recipe.
    pub was: String,
    /// Value in the later recipe.
    pub is: String,
}

impl Change {
    /// Whether a run may continue with this change.
    pub fn may_continue(&self) -> bool {
        CONTINUABLE_KEYS.contains(&self.key.as_str())
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was {} and is {}", self.key, self.was, self.is)
    }
}

impl Recipe {
    /// Changes since `earlier` that affect the result, in the order of the sections.
    pub fn changes_since(&self, earlier: &Recipe) -> Vec<Change> {
        let now = flat(self);
        let then = flat(earlier);
        let value = |values: &[(String, Value)], key: &str| {
            let found = values.iter().find(|(k, _)| k == key);
            found.map_or("not set".to_string(), |(_, value)| value.to_string())
        };
        let mut keys: Vec<&String> = now.iter().map(|(key, _)| key).collect();
        keys.extend(then.iter().map(|(key, _)| key).filter(|key| !now.iter().any(|(k, _)| k == *key)));
        let changes = keys.into_iter().filter(|key| !is_harmless(key)).map(|key| Change {
            key: key.clone(),
            was: value(&then, key),
            is: value(&now, key),
        });
        changes.filter(|c| c.was != c.is).collect()
    }
}

fn is_harmless(key: &str) -> bool {
    let section = key.split('.').next().unwrap_or(key);
    HARMLESS_SECTIONS.contains(&section) || HARMLESS_KEYS.contains(&key)
}

/// All keys that are set, with their values, and the number of shares, which is 1 unless set.
fn flat(recipe: &Recipe) -> Vec<(String, Value)> {
    let Ok(Value::Object(sections)) = serde_json::to_value(recipe) else {
        unreachable!("a recipe has only tables and plain values")
    };
    let keys = |(section, keys): (String, Value)| {
        let keys = if let Value::Object(keys) = keys { keys } else { Default::default() };
        keys.into_iter().map(move |(key, value)| (format!("{section}.{key}"), value))
    };
    let mut all: Vec<(String, Value)> = sections.into_iter().flat_map(keys).collect();
    if recipe.train.shares.is_none() {
        all.push(("train.shares".into(), 1.into()));
    }
    all
}
