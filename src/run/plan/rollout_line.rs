//! A line of `rollouts.jsonl`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A completion with its rewards: a line of `rollouts.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RolloutLine {
    /// Number of the step that the completion was drawn for, from 1.
    pub step: usize,
    /// The record of the prompt: `prompts.jsonl line 3`.
    pub sample: String,
    /// The prompt as in the record.
    pub prompt: Value,
    /// The text.
    pub completion: String,
    /// Number of tokens, with the end token.
    pub tokens: usize,
    /// Whether the model ended it.
    pub finished: bool,
    /// The value of each reward; null where it does not apply.
    pub rewards: Map<String, Value>,
    /// Their weighted sum; null where none applies.
    pub reward: Option<f64>,
    /// The advantage over the other completions of the prompt.
    pub advantage: f64,
}

impl RolloutLine {
    /// The prompt to show: its text, or its messages as JSON.
    pub fn prompt_text(&self) -> String {
        self.prompt.as_str().map_or_else(|| self.prompt.to_string(), str::to_owned)
    }
}
