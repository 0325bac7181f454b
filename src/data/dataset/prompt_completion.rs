//! `{"prompt": "…", "completion": "…"}`: one user and one assistant turn in the chat template. Both may be message lists
//! instead, as in TRL's conversational format. Loss is on the completion.
//! `"system"` beside them is the system message.

use serde_json::{Map, Value};

use super::error::Problem;
use super::messages::{kwargs, list_of};
use super::record::{Ignored, optional_text, wrong};
use super::tools;
use crate::data::template::{Conversation, Message, Role};

/// Converts the pair to one conversation.
pub(super) fn conversation(
    object: &Map<String, Value>,
    ignored: &mut Ignored,
) -> Result<Conversation, Problem> {
    ignored.note(object, &["prompt", "completion", "system", "tools", "chat_template_kwargs"], "")?;
    let system = optional_text(object, "system")?;
    let (mut messages, mut trained_from) = match (&object["prompt"], &object["completion"]) {
        (Value::String(prompt), Value::String(completion)) => {
            (vec![Message::new(Role::User, prompt), Message::new(Role::Assistant, completion)], 1)
        }
        (prompt @ Value::Array(_), completion @ Value::Array(_)) => {
            let mut messages = list_of(prompt, "prompt", 0, ignored)?;
            let trained_from = messages.len();
            messages.extend(list_of(completion, "completion", trained_from, ignored)?);
            (messages, trained_from)
        }
        (Value::String(_), other) => return Err(wrong("completion", "a string like \"prompt\"", other)),
        (Value::Array(_), other) => return Err(wrong("completion", "a list like \"prompt\"", other)),
        (other, _) => return Err(wrong("prompt", "a string or a list of messages", other)),
    };
    if !system.is_empty() {
        messages.insert(0, Message::new(Role::System, system));
        trained_from += 1;
    }
    let (tools, kwargs) = (tools::declared(object.get("tools"))?, kwargs(object)?);
    Ok(Conversation { messages, tools, trained_from, kwargs })
}
