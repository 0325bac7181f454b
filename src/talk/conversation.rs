//! [`Conversation`]: a conversation of several turns, kept as the ids in a cache.
//!
//! A built-in template keeps earlier turns unchanged. A Jinja template may render earlier turns differently from the last one
//! (it may drop reasoning), so it renders all messages again; the common prefix stays in the cache.

use crate::data::template::{self, BuiltIn, Message, Part, ReplyParts, Role, Template, TemplateError};
use crate::data::tokenizer::{Special, Tokenizer};
use crate::talk::refusal::Refusal;

/// A conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    messages: Vec<Message>,
    /// Ids up to the newline after the last reply, with a built-in template; empty before the first message.
    history: Vec<u32>,
}

/// A user message together with the conversation before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// All ids, including the generation prompt.
    pub ids: Vec<u32>,
    /// All ids in the template of earlier turns ([`BuiltIn::history`]).
    history: Vec<u32>,
    message: Message,
}

impl Conversation {
    /// Starts a conversation, optionally with a system message.
    pub fn new(system: Option<String>) -> Conversation {
        let messages = system.into_iter().map(|content| Message::new(Role::System, content)).collect();
        Conversation { messages, history: Vec::new() }
    }

    /// Removes all messages but the system message.
    pub fn reset(&mut self) {
        self.messages.retain(|m| m.role == Role::System);
        self.history.clear();
    }

    /// Whether there are no messages besides the system message.
    pub fn is_empty(&self) -> bool {
        self.messages.iter().all(|m| m.role == Role::System)
    }

    /// Starts a turn in which the user writes `message`.
    pub fn ask(&self, template: &Template, tokenizer: &Tokenizer, message: &str) -> Result<Turn, Refusal> {
        let message = Message::new(Role::User, message);
        let after = |before: &[Message]| {
            template::Conversation::new(before.iter().chain([&message]).cloned().collect())
        };
        let layout = match template {
            Template::BuiltIn(layout) => *layout,
            Template::Jinja(_) => {
                let ids = template.prompt(tokenizer, &after(&self.messages))?;
                return Ok(Turn { ids, history: Vec::new(), message });
            }
        };
        let unsaid = if self.history.is_empty() { &self.messages[..] } else { &[] };
        let with = |layout: &'static BuiltIn| -> Result<Vec<u32>, TemplateError> {
            let ids = Template::BuiltIn(layout).prompt(tokenizer, &after(unsaid))?;
            // Only the first message has `<bos>` before it.
            let skipped = usize::from(!self.history.is_empty() && ids.first() == tokenizer.bos().as_ref());
            Ok([&self.history, &ids[skipped..]].concat())
        };
        let (ids, history) = (with(layout)?, with(layout.history.unwrap_or(layout))?);
        Ok(Turn { ids, history, message })
    }

    /// Adds the reply to `turn` to the conversation: its ids, without the end token, and their text.
    pub fn push(&mut self, tokenizer: &Tokenizer, turn: Turn, reply: &[u32], text: &str) {
        // Later turns contain no reasoning.
        let parts = ReplyParts::to(&turn.ids, tokenizer);
        let said = Message { thinking: String::new(), ..message(parts, text) };
        self.messages.extend([turn.message, said]);
        self.history = turn.history;
        self.history.extend(reply);
        self.history.push(tokenizer.turn_end());
        self.history.extend(tokenizer.encode("\n", Special::Plain));
    }
}

/// Converts the text of a reply, with control tokens spelled out, to a message. `parts`: the parser started on the prompt.
pub fn message(mut parts: ReplyParts, text: &str) -> Message {
    let mut message = Message::new(Role::Assistant, "");
    for part in parts.push(text).into_iter().chain(parts.finish()) {
        match part {
            Part::Words(words) => message.content += &words,
            Part::Thought(thought) => message.thinking += &thought,
            Part::Call(call) => message.tool_calls.push(call),
        }
    }
    message
}
