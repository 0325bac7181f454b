//! [`Refusal`]: why a conversation has no prompt, in words for whoever wrote it. [`TemplateError`] speaks of training data.

use crate::data::template::{Conversation, Template, TemplateError};
use crate::data::tokenizer::Tokenizer;

/// Why a conversation cannot be answered. Message numbers count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The field of a request that the template has no place for.
    pub field: Option<String>,
    /// The problem, and the next step.
    pub message: String,
}

/// Renders `conversation` as the prompt of a reply.
pub fn prompt(
    template: &Template,
    tokenizer: &Tokenizer,
    conversation: &Conversation,
) -> Result<Vec<u32>, Refusal> {
    template.prompt(tokenizer, conversation).map_err(Refusal::from)
}

impl From<TemplateError> for Refusal {
    fn from(error: TemplateError) -> Refusal {
        let field = match &error {
            TemplateError::Unused(field) => Some(field.clone()),
            _ => None,
        };
        let message = match error {
            TemplateError::Empty => "there is no message; expected at least one from the user".into(),
            TemplateError::Special { place, token } => {
                format!(
                    "{place} contains the text of the control token {token}, which only the template may write; remove it"
                )
            }
            TemplateError::Syntax { name, problem } => {
                format!(
                    "the chat template{name} cannot be read: {problem}; another template is needed (--template)"
                )
            }
            TemplateError::Stopped { name, problem } => {
                format!(
                    "the chat template{name} was stopped: {problem}; shorten the conversation, or choose another template (--template)"
                )
            }
            TemplateError::Unused(field) => {
                format!(
                    "the model's chat template has no place for \"{field}\", so the model would not see it; leave it out"
                )
            }
            TemplateError::Mask { number, problem } => {
                format!("message {number} cannot be rendered: {problem}")
            }
            // Their words are about messages alone.
            error @ (TemplateError::SystemNotFirst { .. }
            | TemplateError::DroppedCall { .. }
            | TemplateError::Repeated { .. }
            | TemplateError::ToolWithoutCall { .. }
            | TemplateError::Last { .. }
            | TemplateError::Refused { .. }) => error.to_string(),
        };
        Refusal { field, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::template::Role;

    #[test]
    fn nothing_speaks_of_training() {
        let text = || String::from("x");
        let errors = [
            TemplateError::Empty,
            TemplateError::SystemNotFirst { number: 2 },
            TemplateError::Repeated { number: 2, role: Role::User },
            TemplateError::ToolWithoutCall { number: 1 },
            TemplateError::Last { found: Role::Assistant, expected: Role::User },
            TemplateError::Special { place: text(), token: text() },
            TemplateError::Syntax { name: text(), problem: text() },
            TemplateError::Refused { name: text(), problem: text() },
            TemplateError::Stopped { name: text(), problem: text() },
            TemplateError::Unused("tools".into()),
            TemplateError::Mask { number: 1, problem: text() },
        ];
        for error in errors {
            let message = Refusal::from(error).message;
            for word in ["sample", "train", "data", "Ollama", "input_ids"] {
                assert!(!message.contains(word), "{message}");
            }
        }
        assert_eq!(Refusal::from(TemplateError::Unused("tools".into())).field.as_deref(), Some("tools"));
    }
}
