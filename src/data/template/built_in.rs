//! [`BuiltIn`]: a chat layout that is written in Rust, and the pieces of text that it makes.

use std::borrow::Cow;

use super::{Conversation, Rendered, Role, TemplateError, TrainOn};
use crate::data::tokenizer::{Special, Tokenizer};

/// A family's chat layout.
#[derive(Debug)]
pub struct BuiltIn {
    /// Name of the family.
    pub family: &'static str,
    /// Which of the family's models have it: `small`.
    pub variant: &'static str,
    /// Text that changes whenever a rendering changes; part of a run's identity.
    pub version: &'static str,
    /// Refuses conversations that the layout cannot render.
    pub check: fn(&Conversation) -> Result<(), TemplateError>,
    /// The text of a conversation.
    pub pieces: for<'a> fn(&'a Conversation) -> Vec<Piece<'a>>,
    /// The prompt for the answer to a conversation; `None` where nothing follows.
    pub answer_prompt: fn(&Conversation) -> Option<Piece<'static>>,
    /// Whether thoughts of a conversation are missing in its text.
    pub hides_thoughts: fn(&Conversation) -> bool,
    /// The layout of earlier turns; `None` where it is the same.
    pub history: Option<&'static BuiltIn>,
}

/// A piece of the rendered text.
pub struct Piece<'a> {
    /// The text.
    pub text: Cow<'a, str>,
    /// Whether control tokens in the text become tokens.
    pub special: Special,
    /// Index of the message that it belongs to; `None` for the head of the text.
    pub owner: Option<usize>,
    /// Whether the model writes it: words, calls, thoughts, and the end of its turn.
    pub written: bool,
}

/// Pieces in order.
#[derive(Default)]
pub struct Pieces<'a>(Vec<Piece<'a>>);

impl<'a> Pieces<'a> {
    /// All pieces.
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
        self.0.push(Piece { text: text.into(), special, owner, written });
    }

    /// Adds text of the layout, with control tokens.
    pub fn layout(&mut self, owner: Option<usize>, text: impl Into<Cow<'a, str>>) {
        self.push(owner, text, Special::Parse, false);
    }

    /// Adds words of a message, which never become control tokens.
    pub fn words(&mut self, owner: Option<usize>, text: &'a str, written: bool) {
        self.push(owner, text, Special::Plain, written);
    }
}

/// Ids and labels. Loss is on what the model writes in the trained messages, or on these messages as a whole.
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
                trained[index] && (piece.written || !words_alone)
            }
        };
        rendered.push(&tokenizer.encode(&piece.text, piece.special), loss);
    }
    rendered
}
