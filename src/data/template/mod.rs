//! Conversations to token ids with labels, by a family's built-in chat template or by any Jinja chat template.
//!
//! Either way the loss mask is exact for every token. A built-in template knows who wrote each piece. For a Jinja template the
//! mask is derived from its renderings, and a sample without a provable mask is rejected.

mod arguments;
mod built_in;
mod calls;
mod date;
mod encode;
mod error;
mod go;
mod instrument;
mod jinja;
mod limits;
mod masks;
mod meter;
mod probe;
mod python;
mod reply;
mod reply_syntax;

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::data::batch::IGNORE;
use crate::data::tokenizer::{Special, Tokenizer};

pub use arguments::ArgumentsError;
pub use built_in::{BuiltIn, InOllama, Piece, Pieces};
pub use date::Date;
pub use error::TemplateError;
pub use go::{Comparison, Difference, GoError, GoTemplate};
pub use jinja::Jinja;
pub(crate) use probe::last_loss;
pub(crate) use python::float;
pub use reply::{Part, ReplyParts};
pub use reply_syntax::ReplySyntax;

/// Markers around the output of a `{% generation %}` block: two Unicode noncharacters, which no text contains.
const GENERATION: (char, char) = ('\u{fdd0}', '\u{fdd1}');

/// Role of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Instructions; only as the first message. Also called `developer`.
    System,
    /// The user.
    #[default]
    User,
    /// The model.
    Assistant,
    /// The result of a function that the assistant called.
    Tool,
}

impl Role {
    /// Parses the name of a role in a dataset.
    pub fn from_name(name: &str) -> Option<Role> {
        match name {
            "system" | "developer" => Some(Role::System),
            "user" => Some(Role::User),
            "assistant" => Some(Role::Assistant),
            "tool" => Some(Role::Tool),
            _ => None,
        }
    }

    /// The name in messages and templates.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One message of a conversation. An empty field counts as missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// The role.
    pub role: Role,
    /// The text, untrimmed.
    pub content: String,
    /// The assistant's reasoning before its text.
    pub thinking: String,
    /// The assistant's function calls.
    pub tool_calls: Vec<ToolCall>,
    /// In a tool message: the name of the function.
    pub name: String,
    /// In a tool message: the [`ToolCall::id`] of the call that it answers.
    pub tool_call_id: String,
    /// In a tool message: a result that is not a string. `content` is then empty.
    pub result: Option<Value>,
    /// Whether this message has loss; overrides [`TrainOn`].
    pub train: Option<bool>,
}

impl Message {
    /// Creates a message with text only.
    pub fn new(role: Role, content: impl Into<String>) -> Message {
        Message { role, content: content.into(), ..Message::default() }
    }
}

/// A function call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolCall {
    /// The id that results refer to; may be empty.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// The arguments by name.
    pub arguments: Map<String, Value>,
}

/// The content of one sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// The messages, in order.
    pub messages: Vec<Message>,
    /// Available functions, each `{"type": "function", "function": {…}}` with a JSON schema.
    pub tools: Vec<Value>,
    /// Messages before this index are a prompt and have no loss.
    pub trained_from: usize,
    /// Further variables for the template. Every template gets `enable_thinking`.
    pub kwargs: Map<String, Value>,
}

impl Conversation {
    /// Creates a conversation with messages only.
    pub fn new(messages: Vec<Message>) -> Conversation {
        Conversation { messages, ..Conversation::default() }
    }

    /// Whether the model should think: the value of `enable_thinking` if set; otherwise whether the answer to the last user
    /// message has reasoning.
    pub fn thinks(&self) -> bool {
        let answer = self.messages.iter().rev().take_while(|m| m.role != Role::User);
        match self.kwargs.get("enable_thinking") {
            Some(said) => said.as_bool().unwrap_or(false),
            None => answer.into_iter().any(|m| !m.thinking.is_empty()),
        }
    }

    /// Which messages have loss.
    pub(crate) fn trained(&self, train_on: TrainOn) -> Vec<bool> {
        let last = self.messages.iter().rposition(|m| m.role == Role::Assistant);
        let default = |(index, message): (usize, &Message)| match train_on {
            TrainOn::Assistant | TrainOn::Answers => {
                message.role == Role::Assistant && index >= self.trained_from
            }
            TrainOn::LastAssistant => Some(index) == last && index >= self.trained_from,
            TrainOn::All => true,
        };
        self.messages.iter().enumerate().map(|m| m.1.train.unwrap_or(default(m))).collect()
    }
}

/// Which part of a conversation has loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainOn {
    /// Every message of the assistant: its text and its end token.
    #[default]
    Assistant,
    /// Like `Assistant`, without reasoning.
    Answers,
    /// The assistant's last message only.
    LastAssistant,
    /// Everything, including the template's own text.
    All,
}

/// A part of a message that a template drops or changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum LeftOut {
    /// The system message.
    System,
    /// Another message's text.
    Text,
    /// Reasoning.
    Reasoning,
    /// A function call without loss.
    Call,
    /// The declaration of a function.
    Function,
}

/// Token ids with a label for each, as in [`crate::data::batch::Sample`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendered {
    /// Token ids, `[T]`.
    pub ids: Vec<u32>,
    /// Each id that has loss, [`IGNORE`] elsewhere, `[T]`.
    pub labels: Vec<i32>,
    /// Parts of messages that the rendering drops or changes.
    pub left_out: BTreeSet<LeftOut>,
    /// Bytes of its text that the vocabulary cannot write.
    pub unwritten: BTreeSet<u8>,
}

impl Rendered {
    /// Appends the tokens of `text`, all with or all without loss.
    fn append(&mut self, tokenizer: &Tokenizer, text: &str, special: Special, loss: bool) {
        let before = self.ids.len();
        tokenizer.append(text, special, &mut self.ids);
        self.unwritten.append(&mut tokenizer.unwritable(text));
        self.labels.extend(self.ids[before..].iter().map(|&id| if loss { id as i32 } else { IGNORE }));
    }
}

/// A chat template.
pub enum Template {
    /// A built-in template.
    BuiltIn(&'static BuiltIn),
    /// A Jinja template, as transformers and llama.cpp run it.
    Jinja(Box<Jinja>),
}

impl Template {
    /// Encodes a conversation whose last message is the assistant's to ids and labels.
    pub fn render(
        &self,
        tokenizer: &Tokenizer,
        conversation: &Conversation,
        train_on: TrainOn,
    ) -> Result<Rendered, TemplateError> {
        error::check(tokenizer, conversation, &[Role::Assistant])?;
        let trained = conversation.trained(train_on);
        match self {
            Template::BuiltIn(layout) => {
                (layout.check)(conversation)?;
                let pieces = (layout.pieces)(conversation);
                let rendered = built_in::encode(tokenizer, &pieces, conversation, &trained, train_on);
                let hides = (layout.hides_thoughts)(conversation).then_some(LeftOut::Reasoning);
                Ok(Rendered { left_out: hides.into_iter().collect(), ..rendered })
            }
            Template::Jinja(jinja) => {
                let jinja = jinja.of(conversation);
                let (text, loss) = masks::masks(jinja, tokenizer, conversation, &trained, train_on)?;
                let left_out = left_out(jinja, tokenizer, conversation, &trained, &text)?;
                Ok(Rendered { left_out, ..encode::spans(tokenizer, &text, &loss)? })
            }
        }
    }

    /// Encodes a conversation whose last message is from the user or a tool, followed by the generation prompt.
    pub fn prompt(
        &self,
        tokenizer: &Tokenizer,
        conversation: &Conversation,
    ) -> Result<Vec<u32>, TemplateError> {
        error::check(tokenizer, conversation, &[Role::User, Role::Tool])?;
        match self {
            Template::BuiltIn(layout) => {
                (layout.check)(conversation)?;
                let mut pieces = (layout.pieces)(conversation);
                pieces.extend((layout.answer_prompt)(conversation));
                let nothing = vec![false; conversation.messages.len()];
                Ok(built_in::encode(tokenizer, &pieces, conversation, &nothing, TrainOn::Assistant).ids)
            }
            Template::Jinja(jinja) => {
                let jinja = jinja.of(conversation);
                let text = jinja.render(tokenizer, conversation, conversation.messages.len(), true)?;
                Ok(encode::spans(tokenizer, &text, &[])?.ids)
            }
        }
    }

    /// Renders a sample as text; with `prompt`, a conversation that is to be answered.
    pub fn text(
        &self,
        tokenizer: &Tokenizer,
        conversation: &Conversation,
        prompt: bool,
    ) -> Result<String, TemplateError> {
        match self {
            Template::BuiltIn(layout) => {
                (layout.check)(conversation)?;
                let mut pieces = (layout.pieces)(conversation);
                if prompt {
                    pieces.extend((layout.answer_prompt)(conversation));
                }
                Ok(pieces.iter().map(|piece| &*piece.text).collect())
            }
            Template::Jinja(jinja) => {
                let jinja = jinja.of(conversation);
                jinja.render(tokenizer, conversation, conversation.messages.len(), prompt)
            }
        }
    }

    /// SHA-256 of everything that determines the rendering.
    pub fn digest(&self) -> [u8; 32] {
        match self {
            Template::BuiltIn(layout) => Sha256::digest(layout.version).into(),
            Template::Jinja(jinja) => jinja.digest(),
        }
    }
}

/// The parts of messages that are missing in `text`, a rendering. Fails for a call with loss.
fn left_out(
    jinja: &Jinja,
    tokenizer: &Tokenizer,
    conversation: &Conversation,
    trained: &[bool],
    text: &str,
) -> Result<BTreeSet<LeftOut>, TemplateError> {
    // Texts are looked for behind those before them first, so that the time grows with their length alone.
    let mut at = 0;
    let mut shows = |part: &str| match text[at..].find(part.trim()) {
        Some(found) => {
            at += found;
            true
        }
        None => text.contains(part.trim()),
    };
    let mut left_out = BTreeSet::new();
    for message in &conversation.messages {
        if !shows(&message.thinking) {
            left_out.insert(LeftOut::Reasoning);
        }
        if !shows(&message.content) {
            let system = message.role == Role::System;
            left_out.insert(if system { LeftOut::System } else { LeftOut::Text });
        }
    }
    let mut names = conversation.tools.iter().filter_map(|tool| tool.pointer("/function/name")?.as_str());
    if names.any(|name| !text.contains(name)) {
        left_out.insert(LeftOut::Function);
    }
    let dropped = calls::dropped(jinja, tokenizer, conversation);
    if let Some(found) = dropped.iter().find(|found| trained[found.message]) {
        return Err(TemplateError::DroppedCall { number: found.message + 1, what: found.to_string() });
    }
    left_out.extend((!dropped.is_empty()).then_some(LeftOut::Call));
    Ok(left_out)
}

/// Encodes messages with the built-in template, followed by the generation prompt.
pub fn render_prompt(
    tokenizer: &Tokenizer,
    layout: &'static BuiltIn,
    messages: &[Message],
) -> Result<Vec<u32>, TemplateError> {
    Template::BuiltIn(layout).prompt(tokenizer, &Conversation::new(messages.to_vec()))
}
