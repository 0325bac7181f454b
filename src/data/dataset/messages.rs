//! `{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}, …]}`, with OpenAI's keys for tools
//! (`tools`, `tool_calls`, `tool_call_id`), and with reasoning under any of its three names. `weight` or `train` on a message
//! decides whether it has loss.

use serde_json::Value;

use super::error::Problem;
use super::record::{Ignored, is_empty, kind};
use super::{flags, parts, tools};
use crate::data::template::{Message, Role};

/// Keys of a message. The first of two synonyms takes precedence.
const KNOWN: [&str; 9] = [
    "role",
    "content",
    "reasoning_content",
    "reasoning",
    "thinking",
    "tool_calls",
    "tool_call_id",
    "name",
    "tool_name",
];

/// Reads messages. `before`: number of messages in front of them, for errors.
pub(super) fn list_of(
    messages: &[Value],
    key: &str,
    before: usize,
    ignored: &mut Ignored,
) -> Result<Vec<Message>, Problem> {
    let one = |(index, value)| message(value, &format!("{key}[]"), before + index + 1, ignored);
    messages.iter().enumerate().map(one).collect()
}

/// Reads message `number`. `path`: the key that holds it, for notices.
pub(super) fn message(
    value: &Value,
    path: &str,
    number: usize,
    ignored: &mut Ignored,
) -> Result<Message, Problem> {
    let Value::Object(object) = value else {
        let expected = format!("message {number} to be an object with \"role\" and \"content\"");
        return Err(Problem::Type { expected, found: kind(value) });
    };
    let calls = object.get("tool_calls").filter(|calls| !is_empty(calls));
    let (Some(role), true) = (object.get("role"), object.contains_key("content") || calls.is_some()) else {
        return Err(Problem::MessageKeys { number, found: object.keys().cloned().collect() });
    };
    let wrong = |key: &str, expected: &str, found: &Value| Problem::Type {
        expected: format!("message {number}: \"{key}\" to be {expected}"),
        found: kind(found),
    };
    let role = role.as_str().ok_or_else(|| wrong("role", "a string", role))?;
    let Some(role) = role_of(role) else {
        return Err(Problem::Role { number, found: role.to_owned() });
    };
    // No model sees a user's name, but models see a tool's.
    let known = KNOWN.iter().filter(|key| role == Role::Tool || !["name", "tool_name"].contains(key));
    let known: Vec<&str> = known.copied().chain(flags::MESSAGE).collect();
    ignored.note(object, &known, &format!("{path}."))?;
    let optional = |key: &str| match object.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(other) => Err(wrong(key, "a string", other)),
    };
    let first = |keys: &[&str]| {
        let found = keys.iter().map(|key| optional(key)).find(|found| !matches!(found, Ok("")));
        found.unwrap_or(Ok("")).map(str::to_owned)
    };

    let content_of = object.get("content").unwrap_or(&Value::Null);
    let (content, result) = match (content_of, calls) {
        (Value::Null, Some(_)) => Default::default(),
        (value, _) => content(value, role, path, number, ignored)?,
    };
    let mut tool_calls = calls.map_or(Ok(Vec::new()), |calls| tools::calls(calls, number))?;
    tool_calls.extend(content.calls);
    let message = Message {
        role,
        content: content.text,
        thinking: first(&["reasoning_content", "reasoning", "thinking"])? + &content.thinking,
        tool_calls,
        name: if role == Role::Tool { first(&["name", "tool_name"])? } else { String::new() },
        tool_call_id: optional("tool_call_id")?.to_owned(),
        result,
        train: match (flags::of(object, &flags::MESSAGE, number)?, content.train) {
            (own, None) => own,
            (None, parts) => parts,
            (own, parts) => flags::both(own, parts, number)?,
        },
    };
    match misplaced(&message) {
        Some(key) => Err(Problem::Misplaced { number, key, role }),
        None => Ok(message),
    }
}

/// The content of message `number`, or the result that a tool's message has instead of text.
fn content(
    value: &Value,
    role: Role,
    path: &str,
    number: usize,
    ignored: &mut Ignored,
) -> Result<(parts::Parts, Option<Value>), Problem> {
    match value {
        Value::String(text) => Ok((parts::Parts { text: text.clone(), ..Default::default() }, None)),
        Value::Array(parts) if role != Role::Tool || parts.iter().all(|p| p.get("type").is_some()) => {
            Ok((parts::read(parts, number, &format!("{path}.content"), ignored)?, None))
        }
        other if role == Role::Tool && !other.is_null() => Ok((Default::default(), Some(other.clone()))),
        other => {
            let expected = format!("message {number}: \"content\" to be a string");
            Err(Problem::Type { expected, found: kind(other) })
        }
    }
}

/// A key of the message that its role cannot have.
fn misplaced(message: &Message) -> Option<&'static str> {
    match message.role {
        Role::Assistant if !message.tool_call_id.is_empty() => Some("tool_call_id"),
        Role::Assistant => None,
        _ if !message.tool_calls.is_empty() => Some("tool_calls"),
        _ if !message.thinking.is_empty() => Some("reasoning_content"),
        Role::Tool => None,
        _ if !message.tool_call_id.is_empty() => Some("tool_call_id"),
        _ => None,
    }
}

/// A role under its own name, or under one that other formats have for it.
pub(super) fn role_of(name: &str) -> Option<Role> {
    match name {
        "human" => Some(Role::User),
        "model" | "bot" => Some(Role::Assistant),
        name => Role::from_name(name),
    }
}
