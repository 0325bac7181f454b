//! Gemma 4's chat layout, as Ollama's `gemma4` renderer writes it, straight to token ids with labels.
//!
//! `<bos>`, then for each message `<|turn>ROLE\nCONTENT<turn|>\n`, content trimmed, the assistant called `model`.
//! Pieces are encoded one by one, so the loss mask is exact by construction; as pieces meet only at control tokens
//! or after the newline behind a role, the ids equal those of the whole text encoded at once.

use std::borrow::Cow;
use std::fmt;

use crate::batch::IGNORE;
use crate::config::Config;
use crate::tokenizer::{Special, Tokenizer};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Instructions, only as the first message; also called `developer`.
    System,
    /// The one who asks.
    User,
    /// The one who is trained.
    Assistant,
}

impl Role {
    /// The role that a dataset means by `name`.
    pub fn from_name(name: &str) -> Option<Role> {
        match name {
            "system" | "developer" => Some(Role::System),
            "user" => Some(Role::User),
            "assistant" => Some(Role::Assistant),
            _ => None,
        }
    }

    /// The word behind `<|turn>`.
    fn turn_name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "model",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        })
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; white space at both ends is dropped when it is rendered.
    pub content: String,
}

/// Which of the two generation prompts the model was tuned with.
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

    fn thought(self) -> &'static str {
        match self {
            Layout::Small => "",
            Layout::Large => "<|channel>thought\n<channel|>",
        }
    }
}

/// Why a conversation cannot be rendered. Messages count from 1.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum TemplateError {
    /// Nothing to render.
    #[error(
        "the conversation has no message; expected at least one from the user and one from the assistant"
    )]
    Empty,
    /// A system message in the middle.
    #[error("message {number} is from the system; expected a system message only as the first one")]
    SystemNotFirst {
        /// Which message.
        number: usize,
    },
    /// One role twice in a row.
    #[error("messages {} and {number} are both from the {role}; expected turns that alternate; join the two", .number - 1)]
    Repeated {
        /// The second of the two.
        number: usize,
        /// Whose they are.
        role: Role,
    },
    /// The wrong role at the end.
    #[error("the last message is from the {found}, expected one from the {expected}")]
    Last {
        /// Who speaks last.
        found: Role,
        /// Who should.
        expected: Role,
    },
    /// Content that spells a control token.
    #[error(
        "message {number} ({role}) contains the text of the control token {token}, which Ollama would read as \
         that token; remove it, or give the sample as \"input_ids\""
    )]
    Special {
        /// Which message.
        number: usize,
        /// Whose it is.
        role: Role,
        /// The token.
        token: String,
    },
}

/// Token ids with one label under each, as in [`crate::batch::Sample`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendered {
    /// Token ids, `[T]`.
    pub ids: Vec<u32>,
    /// The ids that carry loss, [`IGNORE`] elsewhere, `[T]`.
    pub labels: Vec<i32>,
}

/// A piece of the rendered text.
struct Piece<'a> {
    text: Cow<'a, str>,
    special: Special,
    loss: bool,
}

/// Renders a conversation that ends with the assistant. Loss on the assistant's words and its `<turn|>`, in every
/// assistant message from index `trained_from` on; not on the newline after.
///
/// With [`Layout::Large`] only the last turn opens with the empty thought channel: what Ollama has before it at the
/// time of that answer; earlier turns stand as it renders history.
pub fn render_sample(
    tokenizer: &Tokenizer,
    layout: Layout,
    messages: &[Message],
    trained_from: usize,
) -> Result<Rendered, TemplateError> {
    check(tokenizer, messages, Role::Assistant)?;
    Ok(encode(tokenizer, &pieces(layout, messages, trained_from)))
}

/// Ids of a conversation that ends with the user, followed by the generation prompt.
pub fn render_prompt(
    tokenizer: &Tokenizer,
    layout: Layout,
    messages: &[Message],
) -> Result<Vec<u32>, TemplateError> {
    check(tokenizer, messages, Role::User)?;
    let prompt = piece(format!("<|turn>model\n{}", layout.thought()), Special::Parse, false);
    let mut pieces = pieces(layout, messages, messages.len());
    pieces.push(prompt);
    Ok(encode(tokenizer, &pieces).ids)
}

/// The text whose ids [`render_sample`] returns, for people and tests; nothing is checked.
pub fn render_text(layout: Layout, messages: &[Message]) -> String {
    pieces(layout, messages, 0).iter().map(|piece| &*piece.text).collect()
}

fn check(tokenizer: &Tokenizer, messages: &[Message], expected: Role) -> Result<(), TemplateError> {
    for (index, message) in messages.iter().enumerate() {
        let (number, role) = (index + 1, message.role);
        if index > 0 && role == Role::System {
            return Err(TemplateError::SystemNotFirst { number });
        }
        if index > 0 && role == messages[index - 1].role {
            return Err(TemplateError::Repeated { number, role });
        }
        if let Some(token) = tokenizer.find_special(&message.content) {
            return Err(TemplateError::Special { number, role, token: token.to_owned() });
        }
    }
    match messages.last() {
        None => Err(TemplateError::Empty),
        Some(last) if last.role != expected => Err(TemplateError::Last { found: last.role, expected }),
        Some(_) => Ok(()),
    }
}

fn pieces(layout: Layout, messages: &[Message], trained_from: usize) -> Vec<Piece<'_>> {
    let mut pieces = vec![piece("<bos>", Special::Parse, false)];
    for (index, message) in messages.iter().enumerate() {
        let assistant = message.role == Role::Assistant;
        let answer = assistant && index + 1 == messages.len();
        let thought = if answer { layout.thought() } else { "" };
        let loss = assistant && index >= trained_from;
        let head = format!("<|turn>{}\n{thought}", message.role.turn_name());
        pieces.push(piece(head, Special::Parse, false));
        // Go's strings.TrimSpace, which Ollama uses, and `trim` drop the same characters.
        pieces.push(piece(message.content.trim(), Special::Plain, loss));
        pieces.push(piece("<turn|>", Special::Parse, loss));
        pieces.push(piece("\n", Special::Parse, false));
    }
    pieces
}

fn piece<'a>(text: impl Into<Cow<'a, str>>, special: Special, loss: bool) -> Piece<'a> {
    Piece { text: text.into(), special, loss }
}

fn encode(tokenizer: &Tokenizer, pieces: &[Piece]) -> Rendered {
    let mut rendered = Rendered::default();
    for piece in pieces {
        let ids = tokenizer.encode(&piece.text, piece.special);
        rendered.labels.extend(ids.iter().map(|&id| if piece.loss { id as i32 } else { IGNORE }));
        rendered.ids.extend(ids);
    }
    rendered
}
