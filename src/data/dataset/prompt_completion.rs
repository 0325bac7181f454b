//! `{"prompt": "…", "completion": "…"}`: one user and one assistant turn in the chat template. Both may be message lists
//! instead, as in TRL's conversational format. Loss is on the completion.
//! `"system"` beside them is the system message.

use serde_json::{Map, Value};

use super::beside::side;
use super::conversation::{BESIDE, turns, with_beside};
use super::error::Problem;
use super::record::{Ignored, wrong};
use crate::data::template::{Conversation, Message, Role};

/// Converts the pair to one conversation.
pub(super) fn conversation(
    object: &Map<String, Value>,
    ignored: &mut Ignored,
) -> Result<Conversation, Problem> {
    ignored.note(object, &[&["prompt", "completion"][..], &BESIDE].concat(), "")?;
    let mut messages = match &object["prompt"] {
        Value::String(prompt) => vec![Message::new(Role::User, prompt)],
        prompt @ Value::Array(_) => turns(prompt, "prompt", 0, ignored)?,
        other => return Err(wrong("prompt", "a string or a list of messages", other)),
    };
    let trained_from = messages.len();
    messages.extend(side(&object["completion"], "completion", trained_from, ignored)?);
    with_beside(object, messages, trained_from, ignored)
}
