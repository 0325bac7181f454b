//! Chat layouts in which every role has marks of its own around its text, without a name.

use super::chat_layout;
use crate::data::template::{Conversation, Piece, Pieces, Role, TemplateError};
use crate::data::tokenizer::Special;

/// The text around the messages of a conversation, in front and behind.
pub(super) struct Marks {
    /// In front of the conversation.
    pub start: &'static str,
    /// Around the system message.
    pub system: (&'static str, &'static str),
    /// Around a question.
    pub user: (&'static str, &'static str),
    /// Around an answer; the model generates the second.
    pub assistant: (&'static str, &'static str),
}

impl Marks {
    /// The rules of layouts of text alone.
    pub fn check(&self, conversation: &Conversation) -> Result<(), TemplateError> {
        chat_layout::check(conversation, false)
    }

    /// The text of a conversation.
    pub fn pieces<'a>(&self, conversation: &'a Conversation) -> Vec<Piece<'a>> {
        let mut out = Pieces::default();
        out.layout(None, self.start);
        for (index, message) in conversation.messages.iter().enumerate() {
            let (owner, (open, close)) = (Some(index), self.around(message.role));
            let written = message.role == Role::Assistant;
            if !open.is_empty() {
                out.layout(owner, open);
            }
            out.words(owner, &message.content, written);
            if !close.is_empty() {
                out.push(owner, close, Special::Parse, written);
            }
        }
        out.into_vec()
    }

    /// The prompt for an answer.
    pub fn answer_prompt(&self) -> Option<Piece<'static>> {
        let text = self.assistant.0.into();
        Some(Piece { text, special: Special::Parse, owner: None, written: false, thought: false })
    }

    /// A Go template that writes the layout, for Ollama, which adds the token that begins a sequence.
    pub fn go(&self) -> String {
        let turn = |role| {
            let (open, close) = self.around(role);
            format!("{open}{{{{ .Content }}}}{close}")
        };
        let [system, user, assistant] = [Role::System, Role::User, Role::Assistant].map(turn);
        format!(
            "{{{{ range .Messages }}}}{{{{ if eq .Role \"system\" }}}}{system}{{{{ else if eq .Role \"user\" }}}}{user}\
             {{{{ else }}}}{assistant}{{{{ end }}}}{{{{ end }}}}{}",
            self.assistant.0
        )
    }

    fn around(&self, role: Role) -> (&'static str, &'static str) {
        match role {
            Role::System => self.system,
            Role::Assistant => self.assistant,
            _ => self.user,
        }
    }
}

/// A [`crate::data::template::BuiltIn`] of marks.
macro_rules! marks {
    ($family:expr, $variant:expr, $tokens:expr, $marks:expr) => {
        crate::data::template::BuiltIn {
            family: $family,
            variant: $variant,
            version: concat!($variant, " marks 1"),
            tokens: $tokens,
            in_ollama: crate::data::template::InOllama::Template(|| $marks.go()),
            check: |conversation| $marks.check(conversation),
            pieces: |conversation| $marks.pieces(conversation),
            answer_prompt: |_| $marks.answer_prompt(),
            hides_thoughts: |_| false,
            history: None,
        }
    };
}
pub(super) use marks;
