//! Rendered text to token ids, split at the boundaries of the loss.

use std::ops::Range;

use super::{Rendered, TemplateError};
use crate::data::tokenizer::{Special, Tokenizer};

/// The bytes of a text that have loss, and the number of their message, from 1, for errors.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Span {
    pub bytes: Range<usize>,
    pub number: usize,
}

/// Encodes text with control tokens to ids and labels. `loss` is ascending and disjoint. Where the file says that
/// every sequence starts with a token, it does, even if the text does not.
///
/// Every boundary must fall between two tokens. Then the ids equal those of the whole text, and also those of a program that
/// encodes only the prompt and lets the model continue.
pub(super) fn spans(tokenizer: &Tokenizer, text: &str, loss: &[Span]) -> Result<Rendered, TemplateError> {
    let mut rendered = Rendered::default();
    let mut done = 0;
    for span in loss {
        for at in [span.bytes.start, span.bytes.end] {
            if tokenizer.joins_at(text, at) {
                return Err(TemplateError::Mask { number: span.number, problem: joined(text, at) });
            }
        }
        rendered.append(tokenizer, &text[done..span.bytes.start], Special::Parse, false);
        rendered.append(tokenizer, &text[span.bytes.clone()], Special::Parse, true);
        done = span.bytes.end;
    }
    rendered.append(tokenizer, &text[done..], Special::Parse, false);
    if let Some(bos) = tokenizer.bos().filter(|bos| rendered.ids.first() != Some(bos)) {
        rendered.ids.insert(0, bos);
        rendered.labels.insert(0, crate::data::batch::IGNORE);
    }
    Ok(rendered)
}

fn joined(text: &str, at: usize) -> String {
    let before: String = text[..at].chars().rev().take(12).collect::<Vec<_>>().into_iter().rev().collect();
    let after: String = text[at..].chars().take(12).collect();
    format!(
        "one token covers both the template's text {before:?} and the text after it, {after:?}; let the template end the prompt with a \
         newline or a control token"
    )
}
