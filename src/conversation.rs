//! A conversation as the ids that a cache holds: what was said stays as it was said, never rendered again.

use crate::template::{Layout, Message, Role, TemplateError, render_prompt};
use crate::tokenizer::{Special, Tokenizer};

/// The turns so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    layout: Layout,
    system: Option<String>,
    /// Up to the newline behind the last reply; empty before the first message.
    history: Vec<u32>,
}

/// A message with what was said before.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// All ids, up to the prompt for the reply.
    pub ids: Vec<u32>,
    /// The same as later turns have it: [`Layout::Large`] opens only the turn that is to come with an empty thought.
    history: Vec<u32>,
}

impl Conversation {
    /// An empty conversation under a system message, where there is one.
    pub fn new(layout: Layout, system: Option<String>) -> Conversation {
        Conversation { layout, system, history: Vec::new() }
    }

    /// Forgets what was said; the system message stays.
    pub fn reset(&mut self) {
        self.history.clear();
    }

    /// Whether nothing was said yet.
    pub fn is_empty(&self) -> bool {
        self.history.is_empty()
    }

    /// The user says `message`.
    pub fn ask(&self, tokenizer: &Tokenizer, message: &str) -> Result<Turn, TemplateError> {
        let mut messages = Vec::new();
        if self.history.is_empty() {
            let system = |content: &String| Message::new(Role::System, content.as_str());
            messages.extend(self.system.as_ref().map(system));
        }
        messages.push(Message::new(Role::User, message));
        let with = |layout: Layout| -> Result<Vec<u32>, TemplateError> {
            let ids = render_prompt(tokenizer, layout, &messages)?;
            // <bos> stands in front of the first message only.
            let skipped = usize::from(!self.history.is_empty());
            Ok([&self.history, &ids[skipped..]].concat())
        };
        Ok(Turn { ids: with(self.layout)?, history: with(Layout::Small)? })
    }

    /// The model said `reply` (without the token that ended it) to `turn`.
    pub fn push(&mut self, tokenizer: &Tokenizer, turn: Turn, reply: &[u32]) {
        self.history = turn.history;
        self.history.extend(reply);
        self.history.push(tokenizer.turn_end());
        self.history.extend(tokenizer.encode("\n", Special::Plain));
    }
}
