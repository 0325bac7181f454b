//! A list of messages with what stands beside it: the system message, functions, and variables for the template.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::error::Problem;
use super::record::{Ignored, has_null, is_empty, list, without_padding, wrong};
use super::{messages, parts, sharegpt, tools};
use crate::data::template::{Conversation, Message, Role};

/// Keys beside the messages.
pub(super) const BESIDE: [&str; 3] = ["system", "tools", "chat_template_kwargs"];

/// Reads the conversation under `key`.
pub(super) fn read(
    object: &Map<String, Value>,
    key: &str,
    ignored: &mut Ignored,
) -> Result<Conversation, Problem> {
    ignored.note(object, &[&[key][..], &BESIDE].concat(), "")?;
    let messages = turns(&object[key], key, 0, ignored)?;
    with_beside(object, messages, 0, ignored)
}

/// Reads a list of messages with `role` and `content`, or of ShareGPT's turns with `from` and `value`. `before`: number of messages in
/// front of them, for errors.
pub(super) fn turns(
    value: &Value,
    key: &str,
    before: usize,
    ignored: &mut Ignored,
) -> Result<Vec<Message>, Problem> {
    let turns = list(value, key, "messages")?;
    match turns.first() {
        Some(first) if first.get("role").is_none() && first.get("from").is_some() => {
            sharegpt::turns(turns, key, before, ignored)
        }
        _ => messages::list_of(turns, key, before, ignored),
    }
}

/// Messages of which those before `trained_from` are a prompt, with what stands beside them in the record. A system message of their
/// own takes precedence over the one beside them.
pub(super) fn with_beside(
    object: &Map<String, Value>,
    mut messages: Vec<Message>,
    mut trained_from: usize,
    ignored: &mut Ignored,
) -> Result<Conversation, Problem> {
    let system = system(object, ignored)?;
    match messages.first() {
        _ if system.trim().is_empty() => {}
        Some(first) if first.role == Role::System && first.content.trim() == system.trim() => {}
        Some(first) if first.role == Role::System => drop(ignored.keys.insert("system".into())),
        _ => {
            messages.insert(0, Message::new(Role::System, system));
            trained_from += 1;
        }
    }
    let mut padding = HashSet::new();
    let (tools, kwargs) = (tools::declared(object.get("tools"), &mut padding)?, kwargs(object)?);
    ignored.nulls |= !padding.is_empty();
    for message in &mut messages {
        message.tool_calls.iter_mut().for_each(|call| without_padding(&mut call.arguments, &padding));
        let arguments = message.tool_calls.iter().flat_map(|call| call.arguments.values());
        ignored.kept_nulls |= arguments.chain(&message.result).any(has_null);
    }
    Ok(Conversation { messages, tools, trained_from, kwargs })
}

/// The system message: a string, or a list of text parts as Anthropic's API takes it.
fn system(object: &Map<String, Value>, ignored: &mut Ignored) -> Result<String, Problem> {
    match object.get("system").filter(|value| !is_empty(value)) {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(list)) => Ok(parts::read(list, 1, "system", ignored)?.text),
        Some(other) => Err(wrong("system", "a string", other)),
    }
}

/// Reads variables for the template, under TRL's key.
fn kwargs(object: &Map<String, Value>) -> Result<Map<String, Value>, Problem> {
    match object.get("chat_template_kwargs") {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(kwargs)) => Ok(kwargs.clone()),
        Some(other) => Err(wrong("chat_template_kwargs", "an object", other)),
    }
}
