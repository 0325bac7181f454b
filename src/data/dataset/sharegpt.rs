//! `{"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}, …]}`, with LLaMA-Factory's extensions
//! `function_call`, `observation`, `system` and `tools`.

use serde_json::Value;

use super::error::Problem;
use super::record::{Ignored, kind};
use super::{flags, tools};
use crate::data::template::{Message, Role};

/// Keys of a turn's reasoning.
const THINKING: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// Reads turns. `before`: number of messages in front of them, for errors. A call behind an answer or another call belongs to its
/// message.
pub(super) fn turns(
    turns: &[Value],
    key: &str,
    before: usize,
    ignored: &mut Ignored,
) -> Result<Vec<Message>, Problem> {
    let mut messages: Vec<Message> = Vec::new();
    for (index, value) in turns.iter().enumerate() {
        let number = before + index + 1;
        let turn = turn(value, &format!("{key}[]"), number, ignored)?;
        match messages.last_mut() {
            Some(last) if last.role == Role::Assistant && !turn.tool_calls.is_empty() => {
                if !turn.thinking.is_empty() {
                    return Err(Problem::PartOrder { number });
                }
                last.train = flags::both(last.train, turn.train, number)?;
                last.tool_calls.extend(turn.tool_calls);
            }
            Some(last) if turn.role == Role::Assistant && !last.tool_calls.is_empty() => {
                return Err(Problem::TextAfterCall { number });
            }
            _ => messages.push(turn),
        }
    }
    Ok(messages)
}

/// Reads turn `number`. `path`: the key that holds it, for notices.
pub(super) fn turn(
    turn: &Value,
    path: &str,
    number: usize,
    ignored: &mut Ignored,
) -> Result<Message, Problem> {
    let Value::Object(object) = turn else {
        let expected = format!("turn {number} to be an object with \"from\" and \"value\"");
        return Err(Problem::Type { expected, found: kind(turn) });
    };
    let (Some(from), Some(value)) = (object.get("from"), object.get("value")) else {
        return Err(Problem::TurnKeys { number, found: object.keys().cloned().collect() });
    };
    let thinking = THINKING.iter().find_map(|key| object.get(*key)?.as_str()).unwrap_or_default();
    let known = [&["from", "value"][..], &flags::MESSAGE, &THINKING].concat();
    ignored.note(object, &known, &format!("{path}."))?;
    let text = |value: &Value, key: &str| match value {
        Value::String(text) => Ok(text.clone()),
        other => {
            let expected = format!("turn {number}: \"{key}\" to be a string");
            Err(Problem::Type { expected, found: kind(other) })
        }
    };
    let from = text(from, "from")?;
    let says = |role: Role| text(value, "value").map(|text| Message::new(role, text));
    let message = match from.to_lowercase().as_str() {
        "system" => says(Role::System)?,
        "human" | "user" | "prompter" => says(Role::User)?,
        "gpt" | "assistant" | "model" | "bot" | "chatgpt" => says(Role::Assistant)?,
        "observation" | "tool" | "tool_response" | "function_response" => says(Role::Tool)?,
        "function_call" | "tool_call" => {
            Message { tool_calls: tools::written(value, number)?, ..Message::new(Role::Assistant, "") }
        }
        _ => return Err(Problem::From { number, found: from }),
    };
    let message = Message {
        train: flags::of(object, &flags::MESSAGE, number)?,
        thinking: thinking.to_owned(),
        ..message
    };
    match message.role {
        Role::Assistant => Ok(message),
        role if !thinking.is_empty() => Err(Problem::Misplaced { number, key: "reasoning_content", role }),
        _ => Ok(message),
    }
}
