//! `"context"` beside a conversation: text that a teacher sees in the prompt, and the student does not. TRL's name is
//! `"privileged_context"`.

use serde_json::{Map, Value};

use super::error::Problem;
use super::record::{CONTEXT_KEYS, Ignored, is_empty, wrong};
use super::{Options, messages};
use crate::data::batch::{IGNORE, targets};
use crate::data::template::{Conversation, Rendered, Role};
use crate::data::tokenizer::Tokenizer;

/// The place of the user's own text in [`Options::teacher_prompt`].
pub const PROMPT: &str = "{prompt}";
/// The place of the context.
pub const CONTEXT: &str = "{context}";

const OF_SHAPE: &str = "needs a conversation beside it: the teacher sees it in the user's message; remove it, or give the sample as \
                        \"prompt\" and \"completion\"";
const NO_USER: &str = "has no place: it goes into the last message of the user before the first one with loss; remove it, or add such a \
                       message";
const OTHER_LOSS: &str = "changes the sample's loss tokens, so that teacher and student cannot be compared token by token; remove it, \
                          leave the prompt without loss (data.train_on = \"assistant\"), or name another data.template";

/// The context of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Found {
    /// Its key is missing.
    #[default]
    Missing,
    /// It has no text.
    Empty,
    /// It has a text.
    Text,
}

/// Reads the context of a record. Returns the row that the teacher reads in place of `rendered`, if it is another one.
pub(super) fn read(
    object: &Map<String, Value>,
    conversation: Option<&Conversation>,
    rendered: &Rendered,
    tokenizer: &Tokenizer,
    options: &Options,
) -> Result<(Found, Option<Rendered>), Problem> {
    let Some(template) = options.teacher_prompt else { return Ok((Found::Missing, None)) };
    let Some((key, value)) = CONTEXT_KEYS.into_iter().find_map(|key| Some((key, object.get(key)?))) else {
        return Ok((Found::Missing, None));
    };
    let context = text(key, value)?;
    if context.trim().is_empty() {
        return Ok((Found::Empty, None));
    }
    let refused = |reason| Problem::UnsupportedKey(key.to_owned(), reason);
    let conversation = conversation.ok_or(refused(OF_SHAPE))?;
    let shown = shown(conversation, &context, template, options).ok_or(refused(NO_USER))?;
    let taught = options.template.render(tokenizer, &shown, options.train_on)?;
    if !targets(&taught.labels).eq(targets(&rendered.labels)) {
        return Err(refused(OTHER_LOSS));
    }
    Ok((Found::Text, Some(taught)))
}

/// The text: a string, or that of messages, as in TRL.
fn text(key: &str, value: &Value) -> Result<String, Problem> {
    match value {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(list) if list.iter().all(Value::is_object) => {
            let messages = messages::list_of(list, key, 0, &mut Ignored::default())?;
            let texts = messages.into_iter().map(|message| message.content);
            Ok(texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n"))
        }
        other if is_empty(other) => Ok(String::new()),
        other => Err(wrong(key, "a string or a list of messages", other)),
    }
}

/// The conversation with the context in the last message of the user before the first message that has loss.
fn shown(
    conversation: &Conversation,
    context: &str,
    template: &str,
    options: &Options,
) -> Option<Conversation> {
    let first = conversation.trained(options.train_on).into_iter().position(|trained| trained)?;
    let mut shown = conversation.clone();
    let message = shown.messages[..first].iter_mut().rfind(|message| message.role == Role::User)?;
    // Each place is filled once, so that braces in the texts stay as they are.
    let (before, after) = template.split_once(PROMPT)?;
    let fill = |part: &str| part.replace(CONTEXT, context);
    message.content = [&fill(before), message.content.as_str(), &fill(after)].concat();
    Some(shown)
}

/// The teacher's row without the loss tokens behind the first `count`, which truncation has taken from the student's.
pub(super) fn cut(mut taught: Rendered, count: usize) -> Rendered {
    let has_loss = |(at, label): (usize, &i32)| (at > 0 && *label != IGNORE).then_some(at + 1);
    let ends: Vec<usize> = taught.labels.iter().enumerate().filter_map(has_loss).collect();
    if let Some(end) = count.checked_sub(1).and_then(|last| ends.get(last)).filter(|_| count < ends.len()) {
        taught.ids.truncate(*end);
        taught.labels.truncate(*end);
    }
    taught
}
