//! The shape of a record, recognized by its keys.

use serde_json::{Map, Value};

use super::beside;
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
    /// `{"contents": [{"role", "parts"}, …]}`: Gemini's.
    Gemini,
    /// `{"text"}`: a document.
    Text,
    /// `{"input_ids": […], "labels": […]}`, used unchanged.
    InputIds,
    /// `{"prompt", "chosen", "rejected"}`: a pair of answers.
    Preference,
    /// `{"prompt", "completion", "label"}`: a rated answer.
    Rated,
}

impl Format {
    /// Every shape of an example to imitate.
    pub const SHAPES: [Format; 7] = [
        Format::Messages,
        Format::PromptCompletion,
        Format::Alpaca,
        Format::Sharegpt,
        Format::Gemini,
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
            Format::Gemini => "gemini",
            Format::Text => "text",
            Format::InputIds => "input_ids",
            Format::Preference => "preference",
            Format::Rated => "rated",
        }
    }

    /// Whether it is a conversation.
    pub(super) fn is_conversation(self) -> bool {
        !matches!(self, Format::Text | Format::InputIds)
    }

    /// The keys that identify it.
    pub(super) fn keys(self) -> &'static [&'static str] {
        match self {
            Format::Auto => &[],
            Format::Messages => &["messages"],
            Format::PromptCompletion => &["prompt", "completion"],
            Format::Alpaca => &["instruction", "output"],
            Format::Sharegpt => &["conversations"],
            Format::Gemini => &["contents"],
            Format::Text => &["text"],
            Format::InputIds => &["input_ids"],
            Format::Preference => &["chosen", "rejected"],
            Format::Rated => &["prompt", "completion", "label"],
        }
    }
}

/// The shape that a record's keys identify, or the requested one. Any other shape takes precedence over `text`, which then
/// holds the same sample already rendered.
pub(super) fn shape(object: &Map<String, Value>, format: Format) -> Result<Format, Problem> {
    refuse_preferences(object, format)?;
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
        [] => {
            let (found, suggestion) = (object.keys().cloned().collect(), super::fields::suggestion(object));
            Err(Problem::Shape { format, found, suggestion })
        }
        _ => Err(Problem::Ambiguous { found: object.keys().cloned().collect(), fit: found }),
    }
}

/// Whether keys include all those of a shape.
pub(super) fn identifies(keys: &[&str]) -> bool {
    Format::SHAPES.iter().any(|shape| shape.keys().iter().all(|key| keys.contains(key)))
}

/// Keys of an answer, or of messages that may end with one.
const ANSWERS: [&str; 7] =
    ["completion", "messages", "conversations", "contents", "output", "response", "answer"];

/// Fails for a record that compares answers (DPO, ORPO) or rates one (KTO): training on it as an example would teach the
/// rejected answers too. A format that the recipe names says that the pair beside it does not count.
fn refuse_preferences(object: &Map<String, Value>, format: Format) -> Result<(), Problem> {
    if let (Some([chosen, rejected]), Format::Auto) = (beside::pair(object), format) {
        return Err(Problem::Preference(format!("\"{chosen}\" and \"{rejected}\""), "dpo"));
    }
    let is_rating = |value: &Value| match value {
        Value::Bool(_) => true,
        Value::String(text) => ["true", "false"].contains(&text.trim().to_lowercase().as_str()),
        _ => false,
    };
    let answer = ANSWERS.into_iter().find(|key| beside::has(object, key));
    match (answer, beside::rating(object).filter(|key| is_rating(&object[*key]))) {
        (Some(answer), Some(rating)) => {
            Err(Problem::Preference(format!("\"{answer}\" with a \"{rating}\" of true or false"), "kto"))
        }
        _ => Ok(()),
    }
}
