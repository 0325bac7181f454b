//! `{"instruction": "…", "input": "…", "output": "…"}`: one user turn, `instruction` and `input` joined by a newline as
//! LLaMA-Factory does, and one assistant turn. LLaMA-Factory's keys `system` and `history` (pairs of question and answer) are
//! read too.

use serde_json::{Map, Value};

use super::error::Problem;
use super::record::{Ignored, is_empty, list, optional_text, text, wrong};
use crate::data::template::{Conversation, Message, Role};

/// Converts a record to a conversation.
pub(super) fn conversation(
    object: &Map<String, Value>,
    ignored: &mut Ignored,
) -> Result<Conversation, Problem> {
    ignored.note(object, &["instruction", "input", "output", "system", "history"], "")?;
    let mut messages = Vec::new();
    let system = optional_text(object, "system")?;
    if !system.is_empty() {
        messages.push(Message::new(Role::System, system));
    }
    if let Some(history) = object.get("history").filter(|history| !is_empty(history)) {
        for pair in list(history, "history", "pairs of question and answer")? {
            let [Value::String(question), Value::String(answer)] =
                pair.as_array().map(Vec::as_slice).unwrap_or_default()
            else {
                return Err(wrong("history", "a list of [question, answer]", pair));
            };
            messages.push(Message::new(Role::User, question));
            messages.push(Message::new(Role::Assistant, answer));
        }
    }
    let (instruction, input) = (text(object, "instruction")?, optional_text(object, "input")?);
    let newline = if input.is_empty() { "" } else { "\n" };
    messages.push(Message::new(Role::User, format!("{instruction}{newline}{input}")));
    messages.push(Message::new(Role::Assistant, text(object, "output")?));
    Ok(Conversation::new(messages))
}
