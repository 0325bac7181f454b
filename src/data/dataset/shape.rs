//! Which shape a record has, by its keys.

use serde_json::{Map, Value};

use super::error::Problem;

/// Shape of a record.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Whichever each record's keys show; shapes may be mixed.
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
    /// `{"input_ids": […], "labels": […]}`, taken as they are.
    InputIds,
}

impl Format {
    /// Every shape, `Auto` not among them.
    pub const SHAPES: [Format; 6] = [
        Format::Messages,
        Format::PromptCompletion,
        Format::Alpaca,
        Format::Sharegpt,
        Format::Text,
        Format::InputIds,
    ];

    /// Its name in recipes.
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

    /// The keys that show it.
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

/// The shape that a record's keys show, or the one that is asked for. `text` gives way to any other: it is then those
/// same samples, rendered.
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
