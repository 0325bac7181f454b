//! Differences between the recipe of a stopped run and the recipe that resumes it.

use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

use serde_json::Value;

use super::source::Effect;
use super::{Recipe, sections};

static EFFECTS: LazyLock<HashMap<String, Effect>> = LazyLock::new(|| {
    let noted = sections::noted().into_iter();
    noted.map(|seen| (format!("{}.{}", seen.section, seen.key), seen.effect)).collect()
});

/// The effect of a key; keys that are unknown to this version affect the result. A key of a list of tables has its table's number.
fn effect(key: &str) -> Effect {
    let parts: Vec<&str> = key.split('.').filter(|part| part.parse::<usize>().is_err()).collect();
    EFFECTS.get(&parts.join(".")).copied().unwrap_or(Effect::Result)
}

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
        effect(&self.key) == Effect::LaterSteps
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
        let changes = keys.into_iter().filter(|key| effect(key) != Effect::Harmless).map(|key| Change {
            key: key.clone(),
            was: value(&then, key),
            is: value(&now, key),
        });
        changes.filter(|c| c.was != c.is).collect()
    }
}

/// The keys of a list of tables, each with the number of its table, from 1.
fn numbered(tables: Vec<Value>) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for (number, table) in tables.into_iter().enumerate() {
        let keys = if let Value::Object(keys) = table { keys } else { Default::default() };
        all.extend(keys.into_iter().map(|(key, value)| (format!("{}.{key}", number + 1), value)));
    }
    all
}

/// All keys that are set, with their values, and the number of shares, which is 1 unless set.
fn flat(recipe: &Recipe) -> Vec<(String, Value)> {
    let Ok(Value::Object(sections)) = serde_json::to_value(recipe) else {
        unreachable!("a recipe has only tables and plain values")
    };
    let keys = |(section, keys): (String, Value)| -> Vec<(String, Value)> {
        let keys = match keys {
            Value::Object(keys) => keys.into_iter().collect(),
            Value::Array(tables) => numbered(tables),
            _ => Vec::new(),
        };
        keys.into_iter().map(move |(key, value)| (format!("{section}.{key}"), value)).collect()
    };
    let mut all: Vec<(String, Value)> = sections.into_iter().flat_map(keys).collect();
    if recipe.train.shares.is_none() {
        all.push(("train.shares".into(), 1.into()));
    }
    all
}
