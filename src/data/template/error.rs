//! Errors of rendering, and the checks that apply to every template.

use serde_json::Value;

use super::GENERATION;
use super::{Conversation, Role};
use crate::data::tokenizer::Tokenizer;

/// Why a conversation cannot be rendered. Message numbers count from 1.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TemplateError {
    /// A conversation without messages.
    #[error(
        "the conversation has no message; expected at least one from the user and one from the assistant"
    )]
    Empty,
    /// A system message that is not the first message.
    #[error("message {number} is from the system; expected a system message only as the first one")]
    SystemNotFirst {
        /// The message's number.
        number: usize,
    },
    /// Two messages in a row from the same role.
    #[error("messages {} and {number} are both from the {role}; expected turns that alternate; join the two", .number - 1)]
    Repeated {
        /// Number of the second message.
        number: usize,
        /// Role of both.
        role: Role,
    },
    /// A tool result without a preceding call.
    #[error(
        "message {number} is from a tool; expected it after an assistant message with \"tool_calls\", or after another tool's message"
    )]
    ToolWithoutCall {
        /// The message's number.
        number: usize,
    },
    /// The last message has the wrong role.
    #[error("the last message is from the {found}, expected one from the {expected}")]
    Last {
        /// Role of the last message.
        found: Role,
        /// Expected role.
        expected: Role,
    },
    /// Content that contains a control token.
    #[error(
        "{place} contains the text of the control token {token}, which Ollama would parse as that token; remove it, or \
         give the sample as \"input_ids\""
    )]
    Special {
        /// The message and its role, or the tools.
        place: String,
        /// The token.
        token: String,
    },
    /// A template that is not valid Jinja.
    #[error(
        "the chat template{name} cannot be read: {problem}; choose the model's built-in layout as data.template, or another file"
    )]
    Syntax {
        /// The template's name, after a space. May be empty.
        name: String,
        /// The problem and its line.
        problem: String,
    },
    /// The template raises an error, or is faulty.
    #[error("the chat template{name} refuses the conversation: {problem}")]
    Refused {
        /// The template's name, after a space. May be empty.
        name: String,
        /// The problem and its line.
        problem: String,
    },
    /// The template exceeds a limit on its work.
    #[error(
        "the chat template{name} was stopped: {problem}; choose the model's built-in layout as data.template, or another file"
    )]
    Stopped {
        /// The template's name, after a space. May be empty.
        name: String,
        /// The limit and the line.
        problem: String,
    },
    /// A field that the template never reads.
    #[error("{}", unused(.0))]
    Unused(String),
    /// A function call that the template does not write.
    #[error(
        "message {number}: the chat template leaves out {what}; give each call a message of its own if the template writes one per message, \
         or choose another data.template"
    )]
    DroppedCall {
        /// The message's number.
        number: usize,
        /// The call.
        what: String,
    },
    /// A message whose tokens cannot be located.
    #[error("message {number}: its tokens cannot be separated from the others: {problem}")]
    Mask {
        /// The message's number.
        number: usize,
        /// The problem and the next step.
        problem: String,
    },
}

/// The text about a key that a template never reads.
fn unused(key: &str) -> String {
    let hint = match key {
        "tools" | "tool_calls" => {
            ": the Jinja file of a model that has functions and the same turns, such as Qwen 2.5's for ChatML (chat_template in its \
             tokenizer_config.json on Hugging Face)"
        }
        _ => "",
    };
    format!(
        "the chat template never reads \"{key}\", so the sample would lose it; remove it from the data, or choose another \
         data.template{hint}"
    )
}

/// Checks that hold for every template: there is a message, the last one has the right role, and no text contains a control
/// token.
pub(super) fn check(
    tokenizer: &Tokenizer,
    conversation: &Conversation,
    last: &[Role],
) -> Result<(), TemplateError> {
    let plain = |place: &dyn Fn() -> String, text: &str| {
        let mark =
            text.contains([GENERATION.0, GENERATION.1]).then_some("U+FDD0 (a marker, not a character)");
        match tokenizer.find_control(text).or(mark) {
            None => Ok(()),
            Some(token) => Err(TemplateError::Special { place: place(), token: token.to_owned() }),
        }
    };
    for (index, message) in conversation.messages.iter().enumerate() {
        let place = || format!("message {} ({})", index + 1, message.role);
        for text in [&message.content, &message.thinking, &message.name, &message.tool_call_id] {
            plain(&place, text)?;
        }
        for call in &message.tool_calls {
            plain(&place, &call.name)?;
            call.arguments.iter().try_for_each(|(key, value)| {
                plain(&place, key)?;
                strings(value, &mut |text| plain(&place, text))
            })?;
        }
        message.result.iter().try_for_each(|value| strings(value, &mut |text| plain(&place, text)))?;
    }
    let place = || "\"tools\"".to_owned();
    conversation.tools.iter().try_for_each(|tool| strings(tool, &mut |text| plain(&place, text)))?;
    match conversation.messages.last() {
        None => Err(TemplateError::Empty),
        Some(found) if !last.contains(&found.role) => {
            Err(TemplateError::Last { found: found.role, expected: last[0] })
        }
        Some(_) => Ok(()),
    }
}

/// Calls `each` for every string in a JSON value, including keys.
fn strings(
    value: &Value,
    each: &mut dyn FnMut(&str) -> Result<(), TemplateError>,
) -> Result<(), TemplateError> {
    match value {
        Value::String(text) => each(text),
        Value::Array(items) => items.iter().try_for_each(|item| strings(item, each)),
        Value::Object(map) => map.iter().try_for_each(|(key, value)| {
            each(key)?;
            strings(value, each)
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}
