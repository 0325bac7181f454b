//! `{"prompt": "…", "completion": "…"}`: one user and one assistant turn in the chat layout, as the base model is
//! used through it. Both may be message lists instead, as in TRL's conversational form; loss is on the completion.

use serde_json::{Map, Value};

use super::error::Problem;
use super::line::{Ignored, kind};
use super::messages::conversation;
use crate::template::{Layout, Message, Rendered, Role, render_sample};
use crate::tokenizer::Tokenizer;

/// The rendered pair.
pub(super) fn sample(
    object: &Map<String, Value>,
    tokenizer: &Tokenizer,
    layout: Layout,
    ignored: &mut Ignored,
) -> Result<Rendered, Problem> {
    ignored.note(object, &["prompt", "completion"], "")?;
    let (messages, trained_from) = match (&object["prompt"], &object["completion"]) {
        (Value::String(prompt), Value::String(completion)) => {
            let user = Message { role: Role::User, content: prompt.clone() };
            (vec![user, Message { role: Role::Assistant, content: completion.clone() }], 1)
        }
        (prompt @ Value::Array(_), completion @ Value::Array(_)) => {
            let mut messages = conversation(prompt, "prompt", 0, ignored)?;
            let trained_from = messages.len();
            messages.extend(conversation(completion, "completion", trained_from, ignored)?);
            (messages, trained_from)
        }
        (Value::String(_), other) => return Err(mismatch("completion", "a string like \"prompt\"", other)),
        (Value::Array(_), other) => return Err(mismatch("completion", "a list like \"prompt\"", other)),
        (other, _) => return Err(mismatch("prompt", "a string or a list of messages", other)),
    };
    Ok(render_sample(tokenizer, layout, &messages, trained_from)?)
}

fn mismatch(key: &str, expected: &str, found: &Value) -> Problem {
    Problem::Type { expected: format!("\"{key}\" to be {expected}"), found: kind(found) }
}
