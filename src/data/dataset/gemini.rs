//! `{"systemInstruction": {"parts": […]}, "contents": [{"role": "user", "parts": [{"text": "…"}]}, {"role": "model", …}]}`:
//! Gemini's format, as Vertex AI takes it for tuning. Text parts are read, and those with `"thought": true` as reasoning.

use serde_json::{Map, Value};

use super::conversation::{BESIDE, with_beside};
use super::error::Problem;
use super::flags;
use super::messages::role_of;
use super::parts::Parts;
use super::record::{Ignored, is_empty, kind, list};
use crate::data::template::{Conversation, Message, Role};

const LIST: &str = "contents";

/// Parts that are no text.
const DATA: [&str; 10] = [
    "inlineData",
    "inline_data",
    "fileData",
    "file_data",
    "functionCall",
    "function_call",
    "functionResponse",
    "function_response",
    "executableCode",
    "codeExecutionResult",
];

/// Keys of the system message.
pub(super) const SYSTEM: [&str; 2] = ["systemInstruction", "system_instruction"];

/// Converts a record to a conversation.
pub(super) fn conversation(
    object: &Map<String, Value>,
    ignored: &mut Ignored,
) -> Result<Conversation, Problem> {
    ignored.note(object, &[&[LIST][..], &SYSTEM, &BESIDE].concat(), "")?;
    let messages = contents(object, ignored)?;
    with_beside(object, messages, 0, ignored)
}

/// The messages of a record, with its system message.
pub(super) fn contents(object: &Map<String, Value>, ignored: &mut Ignored) -> Result<Vec<Message>, Problem> {
    let mut messages = Vec::new();
    let system = SYSTEM.iter().find_map(|key| object.get(*key));
    if let Some(system) = system.filter(|system| !is_empty(system)) {
        let parts = system.get("parts").unwrap_or(system);
        messages.push(Message::new(Role::System, text(parts, 1, "systemInstruction.parts", ignored)?.text));
    }
    for (index, content) in list(&object[LIST], LIST, "contents")?.iter().enumerate() {
        messages.push(message(content, index + 1, ignored)?);
    }
    Ok(messages)
}

fn message(value: &Value, number: usize, ignored: &mut Ignored) -> Result<Message, Problem> {
    let Value::Object(object) = value else {
        let expected = format!("message {number} to be an object with \"role\" and \"parts\"");
        return Err(Problem::Type { expected, found: kind(value) });
    };
    ignored.note(object, &[&["role", "parts"][..], &flags::MESSAGE].concat(), &format!("{LIST}[]."))?;
    let name = object.get("role").and_then(Value::as_str).unwrap_or("user");
    let Some(role) = role_of(name) else {
        return Err(Problem::Role { number, found: name.to_owned() });
    };
    let parts = object.get("parts").unwrap_or(&Value::Null);
    let found = text(parts, number, &format!("{LIST}[].parts"), ignored)?;
    let train = flags::both(flags::of(object, &flags::MESSAGE, number)?, found.train, number)?;
    if !found.thinking.is_empty() && role != Role::Assistant {
        return Err(Problem::Misplaced { number, key: "thought", role });
    }
    Ok(Message { train, thinking: found.thinking, ..Message::new(role, found.text) })
}

/// Text and reasoning of a message: its parts, joined.
fn text(value: &Value, number: usize, path: &str, ignored: &mut Ignored) -> Result<Parts, Problem> {
    let parts = match value {
        Value::Array(parts) => &parts[..],
        text @ (Value::String(_) | Value::Object(_)) => std::slice::from_ref(text),
        other => {
            let expected = format!("message {number}: \"parts\" to be a list of {{\"text\": …}}");
            return Err(Problem::Type { expected, found: kind(other) });
        }
    };
    let (mut found, mut flags) = (Parts::default(), Vec::new());
    for part in parts {
        let (text, thought) = match part {
            Value::String(text) => (text, false),
            Value::Object(object) => {
                let data = DATA.iter().find(|key| object.get(**key).is_some_and(|value| !is_empty(value)));
                if let Some(key) = data {
                    return Err(Problem::Part { number, found: (*key).to_owned() });
                }
                ignored.note(
                    object,
                    &[&["text", "thought"][..], &flags::PART].concat(),
                    &format!("{path}[]."),
                )?;
                let Some(Value::String(text)) = object.get("text") else {
                    let found = object.keys().next().map_or("no type", String::as_str).to_owned();
                    return Err(Problem::Part { number, found });
                };
                flags.push(flags::of(object, &flags::PART, number)?);
                (text, object.get("thought") == Some(&Value::Bool(true)))
            }
            other => return Err(Problem::Part { number, found: kind(other).to_owned() }),
        };
        match thought {
            true if !found.text.trim().is_empty() => return Err(Problem::PartOrder { number }),
            true => found.thinking += text,
            false => found.text += text,
        }
    }
    found.train = flags.first().copied().flatten();
    match flags.iter().all(|flag| *flag == found.train) {
        true => Ok(found),
        false => Err(Problem::PartFlags { number }),
    }
}
