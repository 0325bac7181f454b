//! The shape of a record, recognized by its keys.

use serde_json::{Map, Value};

use super::error::Problem;

/// Shape of a record.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Each record's shape is detected by its keys; shapes may be mixed.
    #[default]
    Auto,
    /// `{"messages": [{"role", "content"}, …]}`.
    Messages,
    /// `{"prompt", "completion"}`: two strings, rendered as one user and one assistant turn, or two message lists.
    PromptCompletion,
    /// `{"instruction", "input", "output"}`.
    Alpaca,
    /// `{"conversations": [{"from", "value"}, …]}`.
    Sharegpt,
    /// `{"text"}`: a document.
    Text,
    /// `{"input_ids": […], "labels": […]}`, used unchanged.
    InputIds,
}

impl Format {
    /// Every shape; excludes `Auto`.
    pub const SHAPES: [Format; 6] = [
        Format::Messages,
        Format::PromptCompletion,
        Format::Alpaca,
        Format::Sharegpt,
        Format::Text,
        Format::InputIds,
    ];

    /// The name in recipes.
    pub fn name(self) -> &'static str {
        match self {
            Format::Auto => "auto",
            Format::Messages => "messages",
            Format::PromptCompletion => "prompt_completion",
            Format::Alpaca => "alpaca",
            Format::Sharegpt => "sharegpt",
            Format::Text => "text",
            Format::InputIds => "input_ids",
        }
    }

    /// The keys that identify it.
    pub(super) fn keys(self) -> &'static [&'static str] {
        match self {
            Format::Auto => &[],
            Format::Messages => &["messages"],
            Format::PromptCompletion => &["prompt", "completion"],
            Format::Alpaca => &["instruction", "output"],
            Format::Sharegpt => &["conversations"],
            Format::Text => &["text"],
            Format::InputIds => &["input_ids"],
        }
    }
}

/// The shape that a record's keys identify, or the requested one. Any other shape takes precedence over `text`, which then
/// holds the same sample already rendered.
pub(super) fn shape(object: &Map<String, Value>, format: Format) -> Result<Format, Problem> {
    let fits = |shape: &Format| {
        let asked_for = format == Format::Auto || format == *shape;
        asked_for && shape.keys().iter().all(|&key| object.contains_key(key))
    };
    let mut found: Vec<Format> = Format::SHAPES.into_iter().filter(fits).collect();
    if found.len() > 1 {
        found.retain(|shape| *shape != Format::Text);
    }
    match found[..] {
        [shape] => Ok(shape),
        [] => Err(Problem::Shape { format, found: object.keys().cloned().collect() }),
        _ => Err(Problem::Ambiguous { found: object.keys().cloned().collect(), fit: found }),
    }
}
