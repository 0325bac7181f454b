//! `{"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}, …]}`, with LLaMA-Factory's extensions
//! `function_call`, `observation`, `system` and `tools`.

use serde_json::{Map, Value};

use super::error::Problem;
use super::messages::{self, train};
use super::record::{Ignored, kind, list, optional_text};
use super::tools;
use crate::data::template::{Conversation, Message, Role};

const LIST: &str = "conversations";

/// Converts a record to a conversation. Messages with `role` and `content` are accepted too.
pub(super) fn conversation(
    object: &Map<String, Value>,
    ignored: &mut Ignored,
) -> Result<Conversation, Problem> {
    let turns = list(&object[LIST], LIST, "turns")?;
    if turns.first().is_some_and(|turn| turn.get("role").is_some()) {
        return messages::conversation(object, LIST, ignored);
    }
    ignored.note(object, &[LIST, "system", "tools"], "")?;
    let mut messages = Vec::new();
    let system = optional_text(object, "system")?;
    if !system.is_empty() {
        messages.push(Message::new(Role::System, system));
    }
    for (index, turn) in turns.iter().enumerate() {
        messages.push(message(turn, index + 1, ignored)?);
    }
    Ok(Conversation { tools: tools::declared(object.get("tools"))?, ..Conversation::new(messages) })
}

fn message(turn: &Value, number: usize, ignored: &mut Ignored) -> Result<Message, Problem> {
    let Value::Object(object) = turn else {
        let expected = format!("turn {number} to be an object with \"from\" and \"value\"");
        return Err(Problem::Type { expected, found: kind(turn) });
    };
    let (Some(from), Some(value)) = (object.get("from"), object.get("value")) else {
        return Err(Problem::TurnKeys { number, found: object.keys().cloned().collect() });
    };
    ignored.note(object, &["from", "value", "weight", "train"], &format!("{LIST}[]."))?;
    let text = |value: &Value, key: &str| match value {
        Value::String(text) => Ok(text.clone()),
        other => {
            let expected = format!("turn {number}: \"{key}\" to be a string");
            Err(Problem::Type { expected, found: kind(other) })
        }
    };
    let (from, value) = (text(from, "from")?, text(value, "value")?);
    let message = match from.as_str() {
        "system" => Message::new(Role::System, value),
        "human" | "user" | "prompter" => Message::new(Role::User, value),
        "gpt" | "assistant" | "model" | "bot" | "chatgpt" => Message::new(Role::Assistant, value),
        "observation" | "tool" => Message::new(Role::Tool, value),
        "function_call" => {
            let calls: Value = serde_json::from_str(&value)
                .map_err(|_| Problem::Call { number, problem: "must be JSON" })?;
            let calls = match &calls {
                Value::Array(_) => tools::calls(&calls, number)?,
                one => vec![tools::call(one, number)?],
            };
            Message { tool_calls: calls, ..Message::new(Role::Assistant, "") }
        }
        _ => return Err(Problem::From { number, found: from }),
    };
    Ok(Message { train: train(object, number)?, ..message })
}
