//! The content of a message as a list of parts: `[{"type": "text", "text": "…"}, …]`. Texts are joined as they are; a template that
//! trims them does so itself. LLaMA-Factory's parts have `value` in the place of `text`, and hold reasoning and function calls too.

use serde_json::{Map, Value};

use super::error::Problem;
use super::flags;
use super::record::{Ignored, is_empty, kind};
use super::tools;
use crate::data::template::ToolCall;

/// Kinds of parts, in the order that a message shows them in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Thinking,
    Text,
    Call,
}

/// The content of a message.
#[derive(Default)]
pub(super) struct Parts {
    pub text: String,
    pub thinking: String,
    pub calls: Vec<ToolCall>,
    /// The loss flag that all parts share.
    pub train: Option<bool>,
}

/// Reads the parts of message `number`. `path`: the key that holds them, for notices.
pub(super) fn read(
    parts: &[Value],
    number: usize,
    path: &str,
    ignored: &mut Ignored,
) -> Result<Parts, Problem> {
    let (mut found, mut last, mut flags) = (Parts::default(), Kind::Thinking, Vec::new());
    for part in parts {
        let object = match part {
            Value::Object(object) => object,
            Value::String(text) => {
                found.text += text;
                last = last.max(Kind::Text);
                flags.push(None);
                continue;
            }
            other => return Err(Problem::Part { number, found: kind(other).to_owned() }),
        };
        let (kind, key, value) = one(object, number)?;
        ignored.note(object, &[&["type", key][..], &flags::PART].concat(), &format!("{path}[]."))?;
        flags.push(flags::of(object, &flags::PART, number)?);
        let blank = value.as_str().is_some_and(|text| text.trim().is_empty());
        if kind < last && !blank {
            return Err(Problem::PartOrder { number });
        }
        last = if blank { last } else { kind };
        match (kind, value) {
            (Kind::Text, Value::String(text)) => found.text += text,
            (Kind::Thinking, Value::String(text)) => found.thinking += text,
            (Kind::Call, value) => found.calls.extend(tools::written(value, number)?),
            (_, other) => {
                let expected = format!("message {number}: \"{key}\" of a part to be a string");
                return Err(Problem::Type { expected, found: super::record::kind(other) });
            }
        }
    }
    found.train = flags.first().copied().flatten();
    match flags.iter().all(|flag| *flag == found.train) {
        true => Ok(found),
        false => Err(Problem::PartFlags { number }),
    }
}

/// The kind of a part, and the key and value that hold its content.
fn one(object: &Map<String, Value>, number: usize) -> Result<(Kind, &'static str, &Value), Problem> {
    let given = |key: &&&str| object.get(**key).is_some_and(|value| !value.is_null());
    let name = object.get("type").and_then(Value::as_str);
    let (kind, keys): (Kind, &'static [&'static str]) = match name {
        Some("text" | "input_text" | "output_text") => (Kind::Text, &["text", "value", "content"]),
        Some("reasoning" | "thinking") => (Kind::Thinking, &["reasoning", "thinking", "text", "value"]),
        Some("tool_call") => (Kind::Call, &["tool_call", "value"]),
        None if object.contains_key("text") => (Kind::Text, &["text"]),
        other => return Err(Problem::Part { number, found: other.unwrap_or("no type").to_owned() }),
    };
    match keys.iter().find(given) {
        Some(key) => Ok((kind, key, &object[*key])),
        None => {
            let found = object.iter().filter(|(_, value)| !is_empty(value)).map(|(key, _)| key.clone());
            let kind = name.unwrap_or("text").to_owned();
            Err(Problem::PartKey { number, kind, expected: keys[0], found: found.collect() })
        }
    }
}
