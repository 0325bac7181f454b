//! `{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}, …]}`.

use serde_json::{Map, Value};

use super::error::Problem;
use super::line::{Ignored, kind, list};
use crate::template::{Layout, Message, Rendered, Role, render_sample};
use crate::tokenizer::Tokenizer;

/// The whole conversation, with loss on every assistant message.
pub(super) fn sample(
    object: &Map<String, Value>,
    tokenizer: &Tokenizer,
    layout: Layout,
    ignored: &mut Ignored,
) -> Result<Rendered, Problem> {
    ignored.note(object, &["messages"], "")?;
    let messages = conversation(&object["messages"], "messages", 0, ignored)?;
    Ok(render_sample(tokenizer, layout, &messages, 0)?)
}

/// The list of messages under `key`; `before` messages stand in front of it.
pub(super) fn conversation(
    value: &Value,
    key: &str,
    before: usize,
    ignored: &mut Ignored,
) -> Result<Vec<Message>, Problem> {
    let messages = list(value, key, "messages")?.iter().enumerate();
    messages.map(|(index, value)| message(value, key, before + index + 1, ignored)).collect()
}

fn message(value: &Value, key: &str, number: usize, ignored: &mut Ignored) -> Result<Message, Problem> {
    let Value::Object(object) = value else {
        let expected = format!("message {number} to be an object with \"role\" and \"content\"");
        return Err(Problem::Type { expected, found: kind(value) });
    };
    let (Some(role), Some(content)) = (object.get("role"), object.get("content")) else {
        return Err(Problem::MessageKeys { number, found: object.keys().cloned().collect() });
    };
    ignored.note(object, &["role", "content"], &format!("{key}[]."))?;
    let text = |value: &Value, key: &str| match value {
        Value::String(text) => Ok(text.clone()),
        other => {
            let expected = format!("message {number}: \"{key}\" to be a string");
            Err(Problem::Type { expected, found: kind(other) })
        }
    };
    let (found, content) = (text(role, "role")?, text(content, "content")?);
    match Role::from_name(&found) {
        Some(role) => Ok(Message { role, content }),
        None => Err(Problem::Role { number, found }),
    }
}
