//! `{"instruction": "…", "input": "…", "output": "…"}`: one user turn, `instruction` and `input` joined by a newline as
//! LLaMA-Factory does, and one assistant turn. LLaMA-Factory's keys `system`, `tools` and `history` (pairs of question and
//! answer) are read too.

use serde_json::{Map, Value};

use super::conversation::{BESIDE, with_beside};
use super::error::Problem;
use super::record::{Ignored, is_empty, list, optional_text, text, wrong};
use crate::data::template::{Conversation, Message, Role};

/// Keys of the prompt.
pub(super) const PROMPT: [&str; 3] = ["instruction", "input", "history"];

/// Converts a record to a conversation.
pub(super) fn conversation(
    object: &Map<String, Value>,
    ignored: &mut Ignored,
) -> Result<Conversation, Problem> {
    ignored.note(object, &[&["output"][..], &PROMPT, &BESIDE].concat(), "")?;
    let mut messages = prompt(object)?;
    messages.push(Message::new(Role::Assistant, text(object, "output")?));
    with_beside(object, messages, 0, ignored)
}

/// The turns before the answer, from the keys in [`PROMPT`].
pub(super) fn prompt(object: &Map<String, Value>) -> Result<Vec<Message>, Problem> {
    let mut messages = history(object)?;
    let (instruction, input) = (text(object, "instruction")?, optional_text(object, "input")?);
    let newline = if input.is_empty() { "" } else { "\n" };
    messages.push(Message::new(Role::User, format!("{instruction}{newline}{input}")));
    Ok(messages)
}

/// Earlier turns: pairs of question and answer.
pub(super) fn history(object: &Map<String, Value>) -> Result<Vec<Message>, Problem> {
    let mut messages = Vec::new();
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
    Ok(messages)
}
