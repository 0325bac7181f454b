//! Conversations to token ids with labels: Gemma 4's chat layout as Ollama writes it, or any Jinja chat template.
//!
//! Either way the loss mask is right token by token: the built-in layout knows who wrote each piece, and for a
//! template the mask is proven from its own renderings ([`masks`](self)), or the sample is refused.

mod encode;
mod error;
mod gemma4;
mod jinja;
mod masks;
mod python;
mod reply;
mod tools;

use std::fmt;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::base::config::Config;
use crate::data::batch::IGNORE;
use crate::data::tokenizer::Tokenizer;

pub use error::TemplateError;
pub use jinja::{Date, Jinja};
pub use reply::{Part, ReplyParts};

/// Who speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Instructions, only as the first message; also called `developer`.
    System,
    /// The one who asks.
    #[default]
    User,
    /// The one who is trained.
    Assistant,
    /// What a function that the assistant called gave back.
    Tool,
}

impl Role {
    /// The role that a dataset means by `name`.
    pub fn from_name(name: &str) -> Option<Role> {
        match name {
            "system" | "developer" => Some(Role::System),
            "user" => Some(Role::User),
            "assistant" => Some(Role::Assistant),
            "tool" => Some(Role::Tool),
            _ => None,
        }
    }

    /// The word for it in messages to people and in templates.
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

/// One message of a conversation. A field that is empty is not there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The words, untrimmed.
    pub content: String,
    /// What the assistant thinks before it speaks.
    pub thinking: String,
    /// Functions that the assistant calls.
    pub tool_calls: Vec<ToolCall>,
    /// Of a tool: the function's name.
    pub name: String,
    /// Of a tool: the call that it answers, by [`ToolCall::id`].
    pub tool_call_id: String,
    /// Of a tool: a result that is no string; then `content` is empty.
    pub result: Option<Value>,
    /// Whether this message carries loss, whatever [`TrainOn`] says.
    pub train: Option<bool>,
}

impl Message {
    /// A message of words alone.
    pub fn new(role: Role, content: impl Into<String>) -> Message {
        Message { role, content: content.into(), ..Message::default() }
    }
}

/// A function call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolCall {
    /// What results refer to; may be empty.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// Its arguments by name.
    pub arguments: Map<String, Value>,
}

/// What one sample renders.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// In order.
    pub messages: Vec<Message>,
    /// Functions that may be called, each `{"type": "function", "function": {…}}` with a JSON schema.
    pub tools: Vec<Value>,
    /// Messages before this index are a prompt and carry no loss.
    pub trained_from: usize,
    /// Variables for the template beside messages and tools; `enable_thinking` is known to all.
    pub kwargs: Map<String, Value>,
}

impl Conversation {
    /// A conversation of messages alone.
    pub fn new(messages: Vec<Message>) -> Conversation {
        Conversation { messages, ..Conversation::default() }
    }

    /// Whether the model is asked to think: as `enable_thinking` says, else where the answer to the last user message
    /// shows thinking.
    pub fn thinks(&self) -> bool {
        let answer = self.messages.iter().rev().take_while(|m| m.role != Role::User);
        match self.kwargs.get("enable_thinking") {
            Some(said) => said.as_bool().unwrap_or(false),
            None => answer.into_iter().any(|m| !m.thinking.is_empty()),
        }
    }

    /// Which messages carry loss.
    fn trained(&self, train_on: TrainOn) -> Vec<bool> {
        let last = self.messages.iter().rposition(|m| m.role == Role::Assistant);
        let default = |(index, message): (usize, &Message)| match train_on {
            TrainOn::Assistant => message.role == Role::Assistant && index >= self.trained_from,
            TrainOn::LastAssistant => Some(index) == last && index >= self.trained_from,
            TrainOn::All => true,
        };
        self.messages.iter().enumerate().map(|m| m.1.train.unwrap_or(default(m))).collect()
    }
}

/// Which part of a conversation carries loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainOn {
    /// Every message of the assistant: its words and the token that ends them.
    #[default]
    Assistant,
    /// The last of them alone.
    LastAssistant,
    /// Everything, the layout's own words included.
    All,
}

/// Which of the two layouts Gemma 4 has: they differ in what stands before an answer without thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// e2b and e4b: `<|turn>model\n`.
    Small,
    /// 12b, 26b and 31b: an empty thought channel follows, `<|turn>model\n<|channel>thought\n<channel|>`.
    Large,
}

impl Layout {
    /// The layout of a model: exactly the small ones have per-layer embeddings.
    pub fn of(config: &Config) -> Layout {
        if config.per_layer_width > 0 { Layout::Small } else { Layout::Large }
    }
}

/// Token ids with one label under each, as in [`crate::data::batch::Sample`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendered {
    /// Token ids, `[T]`.
    pub ids: Vec<u32>,
    /// The ids that carry loss, [`IGNORE`] elsewhere, `[T]`.
    pub labels: Vec<i32>,
    /// Whether words or thoughts of some message stand nowhere in the text.
    pub left_out: bool,
}

impl Rendered {
    /// Appends tokens that all carry loss, or none.
    fn push(&mut self, ids: &[u32], loss: bool) {
        self.labels.extend(ids.iter().map(|&id| if loss { id as i32 } else { IGNORE }));
        self.ids.extend(ids);
    }
}

/// How conversations become text.
pub enum Template {
    /// Built in: as Ollama's `gemma4` renderer writes it.
    Gemma4(Layout),
    /// A chat template in Jinja, as transformers and llama.cpp run it.
    Jinja(Box<Jinja>),
}

impl Template {
    /// Ids and labels of a conversation that ends with the assistant.
    pub fn render(
        &self,
        tokenizer: &Tokenizer,
        conversation: &Conversation,
        train_on: TrainOn,
    ) -> Result<Rendered, TemplateError> {
        error::check(tokenizer, conversation, &[Role::Assistant])?;
        let trained = conversation.trained(train_on);
        match self {
            Template::Gemma4(layout) => {
                gemma4::check(conversation)?;
                let pieces = gemma4::pieces(*layout, conversation);
                let rendered = gemma4::encode(tokenizer, &pieces, conversation, &trained, train_on);
                Ok(Rendered { left_out: gemma4::hides_thoughts(conversation), ..rendered })
            }
            Template::Jinja(jinja) => {
                let (text, loss) = masks::masks(jinja, tokenizer, conversation, &trained, train_on)?;
                let shows = |m: &Message| text.contains(m.content.trim()) && text.contains(m.thinking.trim());
                let left_out = !conversation.messages.iter().all(shows);
                Ok(Rendered { left_out, ..encode::spans(tokenizer, &text, &loss)? })
            }
        }
    }

    /// Ids of a conversation that ends with the user or a tool, followed by the prompt for the answer.
    pub fn prompt(
        &self,
        tokenizer: &Tokenizer,
        conversation: &Conversation,
    ) -> Result<Vec<u32>, TemplateError> {
        error::check(tokenizer, conversation, &[Role::User, Role::Tool])?;
        match self {
            Template::Gemma4(layout) => {
                gemma4::check(conversation)?;
                let mut pieces = gemma4::pieces(*layout, conversation);
                pieces.extend(gemma4::answer_prompt(*layout, conversation));
                let nothing = vec![false; conversation.messages.len()];
                Ok(gemma4::encode(tokenizer, &pieces, conversation, &nothing, TrainOn::Assistant).ids)
            }
            Template::Jinja(jinja) => {
                let text = jinja.render(tokenizer, conversation, conversation.messages.len(), true)?;
                Ok(encode::spans(tokenizer, &text, &[])?.ids)
            }
        }
    }

    /// The rendered text, for people and tests; a sample's, or with `prompt` that of a conversation to be answered.
    pub fn text(
        &self,
        tokenizer: &Tokenizer,
        conversation: &Conversation,
        prompt: bool,
    ) -> Result<String, TemplateError> {
        match self {
            Template::Gemma4(layout) => {
                gemma4::check(conversation)?;
                let mut pieces = gemma4::pieces(*layout, conversation);
                if prompt {
                    pieces.extend(gemma4::answer_prompt(*layout, conversation));
                }
                Ok(pieces.iter().map(|piece| &*piece.text).collect())
            }
            Template::Jinja(jinja) => {
                jinja.render(tokenizer, conversation, conversation.messages.len(), prompt)
            }
        }
    }

    /// SHA-256 of everything that decides the rendering.
    pub fn digest(&self) -> [u8; 32] {
        match self {
            Template::Gemma4(layout) => Sha256::digest(format!("gemma4 {layout:?} 1")).into(),
            Template::Jinja(jinja) => jinja.digest(),
        }
    }
}

/// Ids of messages in the built-in layout, followed by the prompt for the answer.
pub fn render_prompt(
    tokenizer: &Tokenizer,
    layout: Layout,
    messages: &[Message],
) -> Result<Vec<u32>, TemplateError> {
    Template::Gemma4(layout).prompt(tokenizer, &Conversation::new(messages.to_vec()))
}
