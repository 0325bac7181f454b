//! [`BuiltIn`]: a chat template written in Rust, and the pieces of text that it produces.

use std::borrow::Cow;

use super::{Conversation, Rendered, Role, TemplateError, TrainOn};
use crate::data::tokenizer::{Special, Tokenizer};

/// A family's built-in chat template.
#[derive(Debug)]
pub struct BuiltIn {
    /// Name of the family.
    pub family: &'static str,
    /// The family's models that use it, for example `small`.
    pub variant: &'static str,
    /// Identifies the rendering; part of a run's identity. Must change whenever a rendering changes.
    pub version: &'static str,
    /// The tokens that it writes. Without one of them in the vocabulary, the template is of another model.
    pub tokens: &'static [&'static str],
    /// Ollama's rendering of the same text.
    pub in_ollama: InOllama,
    /// Fails for conversations that the template cannot render.
    pub check: fn(&Conversation) -> Result<(), TemplateError>,
    /// Renders a conversation.
    pub pieces: for<'a> fn(&'a Conversation) -> Vec<Piece<'a>>,
    /// The generation prompt for the answer to a conversation; `None` if there is none.
    pub answer_prompt: fn(&Conversation) -> Option<Piece<'static>>,
    /// Whether the rendering drops reasoning.
    pub hides_thoughts: fn(&Conversation) -> bool,
    /// The template for earlier turns; `None` if it is the same.
    pub history: Option<&'static BuiltIn>,
}

/// Ollama's rendering of a layout's text.
#[derive(Clone, Copy, Debug)]
pub enum InOllama {
    /// By its own code of this name.
    Code(&'static str),
    /// By this Go template.
    Template(fn() -> String),
}

impl BuiltIn {
    /// Whether the layout writes what Ollama's code called `renderer` writes, which a model in its store names. `None`: Ollama chooses the
    /// code by the architecture.
    pub fn follows(&self, renderer: Option<&str>) -> bool {
        matches!(self.in_ollama, InOllama::Code(name) if renderer.is_none_or(|found| found == name))
    }
}

/// A piece of the rendered text.
pub struct Piece<'a> {
    /// The text.
    pub text: Cow<'a, str>,
    /// Whether control tokens in the text are parsed.
    pub special: Special,
    /// Index of the message that it belongs to; `None` for text before the first message.
    pub owner: Option<usize>,
    /// Whether the model generates it: text, calls, reasoning, and the end of its turn.
    pub written: bool,
    /// Whether it is reasoning, or a mark of it.
    pub thought: bool,
}

/// Pieces of text, in order.
#[derive(Default)]
pub struct Pieces<'a>(Vec<Piece<'a>>);

impl<'a> Pieces<'a> {
    /// Returns all pieces.
    pub fn into_vec(self) -> Vec<Piece<'a>> {
        self.0
    }

    /// Adds a piece.
    pub fn push(
        &mut self,
        owner: Option<usize>,
        text: impl Into<Cow<'a, str>>,
        special: Special,
        written: bool,
    ) {
        self.0.push(Piece { text: text.into(), special, owner, written, thought: false });
    }

    /// Adds reasoning with its marks.
    pub fn thought(&mut self, owner: Option<usize>, text: impl Into<Cow<'a, str>>, written: bool) {
        self.0.push(Piece { text: text.into(), special: Special::Parse, owner, written, thought: true });
    }

    /// Adds text of the template itself, with control tokens.
    pub fn layout(&mut self, owner: Option<usize>, text: impl Into<Cow<'a, str>>) {
        self.push(owner, text, Special::Parse, false);
    }

    /// Adds text of a message, in which control tokens are never parsed.
    pub fn words(&mut self, owner: Option<usize>, text: &'a str, written: bool) {
        self.push(owner, text, Special::Plain, written);
    }
}

/// Encodes pieces to ids and labels. Loss is on the generated pieces of the trained messages, or with `TrainOn::All` on all
/// pieces.
pub(super) fn encode(
    tokenizer: &Tokenizer,
    pieces: &[Piece],
    conversation: &Conversation,
    trained: &[bool],
    train_on: TrainOn,
) -> Rendered {
    let mut rendered = Rendered::default();
    for piece in pieces {
        let loss = match piece.owner {
            None => train_on == TrainOn::All,
            Some(index) => {
                let words_alone =
                    conversation.messages[index].role == Role::Assistant && train_on != TrainOn::All;
                let left_out = piece.thought && train_on == TrainOn::Answers;
                trained[index] && (piece.written || !words_alone) && !left_out
            }
        };
        rendered.append(tokenizer, &piece.text, piece.special, loss);
    }
    rendered
}
