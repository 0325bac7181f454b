//! What differs between the recipe of a stopped run and the one that it is to go on with.

use std::fmt;

use serde_json::Value;

use super::Recipe;

/// Sections that decide what is measured, written and where it runs, but not the numbers: another device, or other kernels, move
/// them by rounding.
const HARMLESS_SECTIONS: [&str; 3] = ["eval", "output", "device"];

/// Keys of the other sections that do not decide the numbers either: activations are the same bits kept or recomputed (a limit
/// under which feed-forwards or attention take fewer tokens at a time moves gradients by their rounding), experts wherever they lie,
/// and what the base and the samples are is told by their digests, wherever they lie.
const HARMLESS_KEYS: [&str; 15] = [
    "model.base",
    "model.fingerprint",
    "lora.allow_other_base",
    "data.train",
    "data.valid",
    "data.format",
    "data.template",
    "data.train_on",
    "data.overlong",
    "data.invalid",
    "data.cache",
    "train.gradient_checkpointing",
    "train.memory_limit",
    "train.offload_experts",
    "train.max_skipped_steps",
];

/// A key and its two values, as TOML or JSON would write them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// `section.key`.
    pub key: String,
    /// Its value then.
    pub was: String,
    /// Its value now.
    pub is: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was {} and is {}", self.key, self.was, self.is)
    }
}

impl Recipe {
    /// Keys in which this recipe would give other numbers than `earlier`, in the manual's order.
    pub fn changes_since(&self, earlier: &Recipe) -> Vec<Change> {
        let (now, then) = (flat(self), flat(earlier));
        let value = |values: &[(String, Value)], key: &str| {
            let found = values.iter().find(|(k, _)| k == key);
            found.map_or("not set".to_string(), |(_, value)| value.to_string())
        };
        let mut keys: Vec<&String> = now.iter().map(|(key, _)| key).collect();
        keys.extend(then.iter().map(|(key, _)| key).filter(|key| !now.iter().any(|(k, _)| k == *key)));
        let changes = keys.into_iter().filter(|key| !is_harmless(key)).map(|key| {
            let (was, is) = (value(&then, key), value(&now, key));
            Change { key: key.clone(), was, is }
        });
        changes.filter(|c| c.was != c.is).collect()
    }
}

fn is_harmless(key: &str) -> bool {
    let section = key.split('.').next().unwrap_or(key);
    HARMLESS_SECTIONS.contains(&section) || HARMLESS_KEYS.contains(&key)
}

/// Every key that is set.
fn flat(recipe: &Recipe) -> Vec<(String, Value)> {
    let Ok(Value::Object(sections)) = serde_json::to_value(recipe) else {
        unreachable!("a recipe is tables of plain values")
    };
    let keys = |(section, keys): (String, Value)| {
        let keys = if let Value::Object(keys) = keys { keys } else { Default::default() };
        keys.into_iter().map(move |(key, value)| (format!("{section}.{key}"), value))
    };
    sections.into_iter().flat_map(keys).collect()
}
