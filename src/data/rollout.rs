//! Completions that a model drew, with what a loss needs to know of them.

use serde_json::{Map, Value};

/// A completion: what followed its prompt, and how good that was.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rollout {
    /// The advantage over the other completions of its prompt.
    pub advantage: f64,
    /// Whether its tokens have loss. Others pass through the model with a coefficient of 0.
    pub counts: bool,
    /// Log-probability of each token as it was drawn.
    pub sampled: Vec<f32>,
    /// Log-probabilities before the first step with these completions; empty in that step.
    pub old: Vec<f32>,
    /// Log-probabilities under the reference; empty if there is none.
    pub reference: Vec<f32>,
}

impl Rollout {
    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.sampled.len()
    }

    /// Number of tokens that have loss.
    pub fn loss_tokens(&self) -> usize {
        if self.counts { self.tokens() } else { 0 }
    }
}

/// The record of a prompt, for rewards.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The prompt as in the record: text or messages.
    pub prompt: Value,
    /// All columns of the record.
    pub columns: Map<String, Value>,
}

impl Row {
    /// The values of some columns in words; `None` where the record has none of them.
    pub fn texts(&self, columns: &[String]) -> Option<String> {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let found =
            columns.iter().filter_map(|column| self.columns.get(column)).filter(|value| !value.is_null());
        let texts: Vec<String> = found.map(text).collect();
        (!texts.is_empty()).then(|| texts.join(", "))
    }
}
