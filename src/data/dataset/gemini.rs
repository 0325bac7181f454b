//! `{"systemInstruction": {"parts": […]}, "contents": [{"role": "user", "parts": [{"text": "…"}]}, {"role": "model", …}]}`:
//! Gemini's format, as Vertex AI takes it for tuning. Only text parts are read.

use serde_json::{Map, Value};

use super::error::Problem;
use super::messages::{role_of, train};
use super::record::{Ignored, kind, list};
use crate::data::template::{Conversation, Message, Role};

const LIST: &str = "contents";

/// Converts a record to a conversation.
pub(super) fn conversation(
    object: &Map<String, Value>,
    ignored: &mut Ignored,
) -> Result<Conversation, Problem> {
    ignored.note(object, &[LIST, "systemInstruction", "system_instruction"], "")?;
    let mut messages = Vec::new();
    if let Some(system) = ["systemInstruction", "system_instruction"].iter().find_map(|key| object.get(*key))
    {
        messages.push(Message::new(Role::System, parts(&system["parts"], 1)?));
    }
    for (index, content) in list(&object[LIST], LIST, "contents")?.iter().enumerate() {
        messages.push(message(content, index + 1, ignored)?);
    }
    Ok(Conversation::new(messages))
}

fn message(value: &Value, number: usize, ignored: &mut Ignored) -> Result<Message, Problem> {
    let Value::Object(object) = value else {
        let expected = format!("message {number} to be an object with \"role\" and \"parts\"");
        return Err(Problem::Type { expected, found: kind(value) });
    };
    ignored.note(object, &["role", "parts", "weight", "train"], &format!("{LIST}[]."))?;
    let name = object.get("role").and_then(Value::as_str).unwrap_or("user");
    let Some(role) = role_of(name) else {
        return Err(Problem::Role { number, found: name.to_owned() });
    };
    let text = parts(object.get("parts").unwrap_or(&Value::Null), number)?;
    Ok(Message { train: train(object, number)?, ..Message::new(role, text) })
}

/// The text of a message: its parts, joined.
fn parts(value: &Value, number: usize) -> Result<String, Problem> {
    let Value::Array(parts) = value else {
        let expected = format!("message {number}: \"parts\" to be a list of {{\"text\": …}}");
        return Err(Problem::Type { expected, found: kind(value) });
    };
    let part = |part: &Value| {
        let keys = part.as_object().map(|object| object.keys().cloned().collect::<Vec<_>>());
        match (part["text"].as_str(), keys) {
            (Some(text), Some(keys)) if keys.len() == 1 => Ok(text.to_owned()),
            (_, keys) => {
                let found = keys.unwrap_or_default().into_iter().find(|key| key != "text");
                Err(Problem::Part { number, found: found.unwrap_or_else(|| "no type".into()) })
            }
        }
    };
    parts.iter().map(part).collect()
}
