//! One record of a dataset: from bytes to a JSON object, and the keys that are ignored.

use std::collections::HashSet;

use indexmap::IndexSet;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::error::Problem;
use crate::data::batch::targets;
use crate::data::digits;
use crate::data::template::Rendered;

/// Keys that change the meaning of a sample. Ignoring them silently would train on something else.
const UNSUPPORTED: [&str; 23] = [
    "system",
    "tools",
    "functions",
    "tool_calls",
    "tool_call_id",
    "tool_responses",
    "function_call",
    "image",
    "images",
    "audio",
    "audios",
    "video",
    "videos",
    "weight",
    "train",
    "training",
    "loss_weight",
    "loss_scale",
    "loss_mask",
    "train_detail",
    "thinking",
    "reasoning",
    "reasoning_content",
];

/// Names of a text that a teacher sees, and the student does not: ours, and TRL's.
pub(super) const CONTEXT_KEYS: [&str; 2] = ["context", "privileged_context"];

/// Keys of pictures and sound, to which the text refers.
const MEDIA: [&str; 6] = ["image", "images", "audio", "audios", "video", "videos"];
const OF_MEDIA: &str = "holds no text, and the sample's text refers to it, but training reads text alone; remove the sample, or set \
                        data.invalid = \"drop\"";
const OF_OTHERS: &str = "is not supported, but ignoring it would change the meaning of the sample; remove it";

/// Parts of a record that training ignores.
#[derive(Default)]
pub(super) struct Ignored {
    /// Keys, in the order of their appearance.
    pub keys: IndexSet<String>,
    /// Whether keys of functions or calls were left out because their values are null.
    pub nulls: bool,
    /// Whether calls or results have nulls that are trained.
    pub kept_nulls: bool,
    /// Whether a context is read.
    pub takes_context: bool,
}

impl Ignored {
    /// Records every key that is not `known`. Fails for an unsupported key, unless its value is empty.
    pub fn note(&mut self, object: &Map<String, Value>, known: &[&str], path: &str) -> Result<(), Problem> {
        let takes_context = self.takes_context && path.is_empty();
        let is_context = |key: &str| takes_context && CONTEXT_KEYS.contains(&key);
        let is_unknown = |key: &str| !known.contains(&key) && !is_context(key);
        for (key, value) in object.iter().filter(|(key, _)| is_unknown(key)) {
            let path = format!("{path}{key}");
            if UNSUPPORTED.contains(&key.as_str()) && !is_empty(value) {
                let reason = if MEDIA.contains(&key.as_str()) { OF_MEDIA } else { OF_OTHERS };
                return Err(Problem::UnsupportedKey(path, reason));
            }
            self.keys.insert(path);
        }
        Ok(())
    }
}

/// Parses a JSON object.
pub(super) fn object(line: &[u8]) -> Result<Map<String, Value>, Problem> {
    let text = std::str::from_utf8(line).map_err(|error| Problem::Utf8(error.valid_up_to() + 1))?;
    match digits::parse(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(Problem::Type { expected: "a JSON object".to_owned(), found: kind(&other) }),
        Err(error) => Err(Problem::Json { column: error.column(), message: message(&error) }),
    }
}

/// The members of an object, with their values as text. `None` if it is no object.
pub(super) fn members(text: &[u8]) -> Option<Vec<(String, &RawValue)>> {
    let object: std::collections::BTreeMap<String, &RawValue> = serde_json::from_slice(text).ok()?;
    let mut members: Vec<(String, &RawValue)> = object.into_iter().collect();
    members.sort_by_key(|(_, value)| value.get().as_ptr());
    Some(members)
}

/// The parser's message without "at line 1", which would be misleading.
pub(super) fn message(error: &serde_json::Error) -> String {
    error.to_string().split(" at line ").next().unwrap_or_default().to_owned()
}

/// The value as a list.
pub(super) fn list<'a>(value: &'a Value, name: &str, of: &str) -> Result<&'a Vec<Value>, Problem> {
    value.as_array().ok_or_else(|| wrong(name, &format!("a list of {of}"), value))
}

/// The string under a key; empty if the key is missing or null.
pub(super) fn optional_text<'a>(object: &'a Map<String, Value>, key: &str) -> Result<&'a str, Problem> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(wrong(key, "a string", other)),
    }
}

/// The string under an existing key.
pub(super) fn text<'a>(object: &'a Map<String, Value>, key: &str) -> Result<&'a str, Problem> {
    object[key].as_str().ok_or_else(|| wrong(key, "a string", &object[key]))
}

/// The error for a value of the wrong type under `key`.
pub(super) fn wrong(key: &str, expected: &str, found: &Value) -> Problem {
    Problem::Type { expected: format!("\"{key}\" to be {expected}"), found: kind(found) }
}

/// The type of a JSON value, for messages.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        value if digits::digits(value).is_some() => "a number",
        Value::Object(_) => "an object",
    }
}

/// Removes every key whose value is null from the declaration of a function, at any depth, as rows of Parquet files lack them. Adds their
/// names to `padding`. The default of a schema that null fits is a value.
pub(super) fn without_nulls(value: &mut Value, padding: &mut HashSet<String>) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| without_nulls(item, padding)),
        Value::Object(fields) => {
            let nullable = fields.contains_key("anyOf") || fields.get("type").is_some_and(Value::is_array);
            fields.retain(|key, value| {
                let kept = !value.is_null() || nullable && key == "default";
                if !kept {
                    padding.insert(key.clone());
                }
                kept
            });
            fields.values_mut().for_each(|value| without_nulls(value, padding));
        }
        _ => {}
    }
}

/// Removes the keys of `padding` whose values are null, at any depth.
pub(super) fn without_padding(fields: &mut Map<String, Value>, padding: &HashSet<String>) {
    fields.retain(|key, value| !value.is_null() || !padding.contains(key));
    fields.values_mut().for_each(|value| without_padding_in(value, padding));
}

fn without_padding_in(value: &mut Value, padding: &HashSet<String>) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| without_padding_in(item, padding)),
        Value::Object(fields) => without_padding(fields, padding),
        _ => {}
    }
}

/// Whether a value is null, or has a null at any depth.
pub(super) fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.iter().any(has_null),
        Value::Object(fields) => fields.values().any(has_null),
        _ => false,
    }
}

/// Whether any position has a label to predict. The first position is never predicted.
pub(super) fn has_loss(rendered: &Rendered) -> bool {
    targets(&rendered.labels).next().is_some()
}

/// Whether a value is empty.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// One record.
pub(super) enum Record<'a> {
    /// The text of a JSON value.
    Text(&'a [u8]),
    /// An object whose size in bytes is about this.
    Object(Map<String, Value>, usize),
}

impl Record<'_> {
    /// Size in bytes, about.
    pub fn len(&self) -> usize {
        match self {
            Record::Text(text) => text.len(),
            Record::Object(_, size) => *size,
        }
    }

    /// The record as an object.
    pub fn object(self) -> Result<Map<String, Value>, Problem> {
        match self {
            Record::Text(text) => object(text),
            Record::Object(object, _) => Ok(object),
        }
    }
}

/// A record with its number, from 1. An error concerns the whole file.
pub(super) type Numbered<'a> = Result<(usize, Record<'a>), Problem>;
