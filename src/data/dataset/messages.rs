//! `{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}, …]}`, with OpenAI's keys for tools
//! (`tools`, `tool_calls`, `tool_call_id`), and with reasoning under any of its three names. `weight` or `train` on a message
//! decides whether it has loss.

use serde_json::{Map, Value};

use super::error::Problem;
use super::record::{Ignored, is_empty, kind, list};
use super::tools;
use crate::data::template::{Conversation, Message, Role};

/// Keys of a message. The first of two synonyms takes precedence.
const KNOWN: [&str; 11] = [
    "role",
    "content",
    "reasoning_content",
    "reasoning",
    "thinking",
    "tool_calls",
    "tool_call_id",
    "name",
    "tool_name",
    "weight",
    "train",
];

/// Reads the conversation under `key`.
pub(super) fn conversation(
    object: &Map<String, Value>,
    key: &str,
    ignored: &mut Ignored,
) -> Result<Conversation, Problem> {
    ignored.note(object, &[key, "tools", "chat_template_kwargs"], "")?;
    Ok(Conversation {
        messages: list_of(&object[key], key, 0, ignored)?,
        tools: tools::declared(object.get("tools"))?,
        kwargs: kwargs(object)?,
        trained_from: 0,
    })
}

/// Reads variables for the template, under TRL's key.
pub(super) fn kwargs(object: &Map<String, Value>) -> Result<Map<String, Value>, Problem> {
    match object.get("chat_template_kwargs") {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(kwargs)) => Ok(kwargs.clone()),
        Some(other) => Err(super::record::wrong("chat_template_kwargs", "an object", other)),
    }
}

/// Reads the messages in `value`. `before`: number of messages in front of them, for errors.
pub(super) fn list_of(
    value: &Value,
    key: &str,
    before: usize,
    ignored: &mut Ignored,
) -> Result<Vec<Message>, Problem> {
    let messages = list(value, key, "messages")?.iter().enumerate();
    messages.map(|(index, value)| message(value, key, before + index + 1, ignored)).collect()
}

fn message(value: &Value, list: &str, number: usize, ignored: &mut Ignored) -> Result<Message, Problem> {
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
    ignored.note(object, &known.copied().collect::<Vec<_>>(), &format!("{list}[]."))?;
    let optional = |key: &str| match object.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(other) => Err(wrong(key, "a string", other)),
    };
    let first = |keys: &[&str]| {
        let found = keys.iter().map(|key| optional(key)).find(|found| !matches!(found, Ok("")));
        found.unwrap_or(Ok("")).map(str::to_owned)
    };

    let (content, result) = match object.get("content").unwrap_or(&Value::Null) {
        Value::String(text) => (text.clone(), None),
        Value::Array(parts) if role != Role::Tool || parts.iter().all(|p| p.get("type").is_some()) => {
            (text_parts(parts, number)?, None)
        }
        Value::Null if calls.is_some() => (String::new(), None),
        other if role == Role::Tool && !other.is_null() => (String::new(), Some(other.clone())),
        other => return Err(wrong("content", "a string", other)),
    };
    let message = Message {
        role,
        content,
        thinking: first(&["reasoning_content", "reasoning", "thinking"])?,
        tool_calls: calls.map_or(Ok(Vec::new()), |calls| tools::calls(calls, number))?,
        name: if role == Role::Tool { first(&["name", "tool_name"])? } else { String::new() },
        tool_call_id: optional("tool_call_id")?.to_owned(),
        result,
        train: train(object, number)?,
    };
    match misplaced(&message) {
        Some(key) => Err(Problem::Misplaced { number, key, role }),
        None => Ok(message),
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

/// Joins text parts, `[{"type": "text", "text": "…"}, …]`. Several parts are trimmed, as chat templates do.
fn text_parts(parts: &[Value], number: usize) -> Result<String, Problem> {
    let part = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text"), Some(text)) if parts.len() == 1 => Ok(text.to_owned()),
        (Some("text"), Some(text)) => Ok(text.trim().to_owned()),
        (kind, _) => {
            let found = kind.unwrap_or("no type").to_owned();
            Err(Problem::Part { number, found })
        }
    };
    parts.iter().map(part).collect()
}

/// The loss flag: OpenAI's `"weight": 0` or `1`, or `"train": true` or `false`.
pub(super) fn train(object: &Map<String, Value>, number: usize) -> Result<Option<bool>, Problem> {
    let weight = object.get("weight").filter(|value| !value.is_null());
    let train = object.get("train").filter(|value| !value.is_null());
    let flag = |value: &Value| {
        value.as_bool().or(value.as_f64().filter(|w| [0.0, 1.0].contains(w)).map(|w| w == 1.0))
    };
    match (weight.or(train), weight.is_some() && train.is_some()) {
        (None, _) => Ok(None),
        (Some(value), false) if flag(value).is_some() => Ok(flag(value)),
        (Some(value), _) => Err(Problem::Flag { number, found: value.to_string() }),
    }
}
