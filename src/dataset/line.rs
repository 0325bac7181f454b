//! One line of a dataset: bytes to a JSON object, and the keys that nothing reads.

use serde_json::{Map, Value};

use super::error::Problem;
use crate::batch::IGNORE;
use crate::template::Rendered;

/// Keys that change what a sample means; leaving them out silently would train on something else.
const UNSUPPORTED: [&str; 17] = [
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
    "thinking",
    "reasoning",
    "reasoning_content",
];

/// Keys that play no part in training, with the number of lines that have them.
#[derive(Default)]
pub(super) struct Ignored {
    /// In order of appearance.
    pub keys: Vec<(String, usize)>,
    line: Vec<String>,
}

impl Ignored {
    /// Notes every key that is not `known`; refuses those that change the meaning, unless they hold nothing.
    pub fn note(&mut self, object: &Map<String, Value>, known: &[&str], path: &str) -> Result<(), Problem> {
        for (key, value) in object.iter().filter(|(key, _)| !known.contains(&key.as_str())) {
            let path = format!("{path}{key}");
            if UNSUPPORTED.contains(&key.as_str()) && !is_empty(value) {
                return Err(Problem::UnsupportedKey(path));
            }
            if !self.line.contains(&path) {
                self.line.push(path);
            }
        }
        Ok(())
    }

    /// Adds the line's keys to the counts.
    pub fn end_line(&mut self) {
        for key in self.line.drain(..) {
            match self.keys.iter_mut().find(|(seen, _)| *seen == key) {
                Some((_, lines)) => *lines += 1,
                None => self.keys.push((key, 1)),
            }
        }
    }
}

/// The JSON object on a line.
pub(super) fn object(line: &[u8]) -> Result<Map<String, Value>, Problem> {
    let text = std::str::from_utf8(line).map_err(|error| Problem::Utf8(error.valid_up_to() + 1))?;
    if text.trim().is_empty() {
        return Err(Problem::EmptyLine);
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(Problem::Type { expected: "a JSON object".to_owned(), found: kind(&other) }),
        Err(error) => {
            let message = error.to_string();
            // The parser sees one line, so its own "at line 1" would mislead.
            let message = message.split(" at line ").next().unwrap_or_default().to_owned();
            Err(Problem::Json { column: error.column(), message })
        }
    }
}

/// A value that must be a list.
pub(super) fn list<'a>(value: &'a Value, name: &str, of: &str) -> Result<&'a Vec<Value>, Problem> {
    value.as_array().ok_or_else(|| Problem::Type {
        expected: format!("\"{name}\" to be a list of {of}"),
        found: kind(value),
    })
}

/// What a JSON value is, in words.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Whether any position has a label to predict; the first has none before it that could.
pub(super) fn has_loss(rendered: &Rendered) -> bool {
    rendered.labels.iter().skip(1).any(|&label| label != IGNORE)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}
