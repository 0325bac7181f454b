//! Settings of replies, their events, and a reply in the making: its text up to a stop text, and the scores of its tokens.

use std::ops::ControlFlow;

use crate::data::tokenizer::{DecodeStream, Tokenizer};
use crate::talk::sampling::Sampling;
use crate::talk::scores::{Held, Score};

/// Settings for generating a reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Choice of tokens.
    pub sampling: Sampling,
    /// Maximum number of tokens in a reply.
    pub max_new_tokens: usize,
    /// Texts that end the reply and are not part of it.
    pub stop: Vec<String>,
    /// Compute the log-probability of every token, with this many of the likeliest ones beside it, at most [`MAX_TOP`](crate::talk::scores::MAX_TOP).
    pub logprobs: Option<usize>,
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or one of [`Options::stop`] occurred.
    Stop,
    /// It reached [`Options::max_new_tokens`].
    Length,
    /// The conversation reached the end of the context.
    Context,
    /// The caller cancelled it.
    Cancelled,
}

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The tokens, without the end token.
    pub ids: Vec<u32>,
    /// The text, up to one of [`Options::stop`]. Control tokens are spelled out.
    pub text: String,
    /// Why the reply ended.
    pub finish: Finish,
    /// Number of prompt tokens.
    pub prompt_tokens: usize,
    /// Number of prompt tokens that were in the cache already.
    pub cached_tokens: usize,
    /// With [`Options::logprobs`], the scores of the tokens that begin in the text.
    pub scores: Vec<Score>,
    /// With [`Options::logprobs`], the score of the end token, if the model ended the reply.
    pub end: Option<Score>,
}

impl Reply {
    /// An empty reply to a prompt of `prompt_tokens`, cancelled before its first token.
    pub fn cancelled(prompt_tokens: usize) -> Reply {
        Reply {
            ids: Vec::new(),
            text: String::new(),
            finish: Finish::Cancelled,
            prompt_tokens,
            cached_tokens: 0,
            scores: Vec::new(),
            end: None,
        }
    }
}

/// Events during a reply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// Number of prompt tokens that have been processed.
    Prompt(usize),
    /// With [`Options::logprobs`], scores of tokens whose text is in the next piece or in earlier ones.
    Scores(&'a [Score]),
    /// The next piece of text: whole characters.
    Text(&'a str),
}

/// A reply in the making.
pub(super) struct Draft {
    pub reply: Reply,
    text: StopText,
    stream: DecodeStream,
    /// Bytes of text so far, those that are held back included.
    decoded: usize,
    held: Held,
}

impl Draft {
    pub fn new(stop: Vec<String>, prompt_tokens: usize, cached_tokens: usize) -> Draft {
        let reply = Reply { finish: Finish::Length, cached_tokens, ..Reply::cancelled(prompt_tokens) };
        let (stream, held) = (DecodeStream::default(), Held::default());
        Draft { reply, text: StopText::new(stop), stream, decoded: 0, held }
    }

    /// Adds a token. Ends the reply if it completes a stop text.
    pub fn push(
        &mut self,
        tokenizer: &Tokenizer,
        id: u32,
        score: Option<Score>,
        hear: &mut impl FnMut(Event) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.reply.ids.push(id);
        self.held.push(self.decoded, score);
        let decoded = self.stream.push(tokenizer, id);
        self.decoded += decoded.len();
        let piece = self.text.push(&decoded);
        self.reply.text += &piece;
        if self.text.ended {
            self.reply.finish = Finish::Stop;
        }
        let scored = self.release(self.reply.text.len(), hear);
        // Emitted even if the text is empty, so that the caller can cancel after every token.
        let heard = hear(Event::Text(&piece));
        if scored.is_break() { scored } else { heard }
    }

    /// Emits the scores of tokens that begin before byte `end`.
    fn release(&mut self, end: usize, hear: &mut impl FnMut(Event) -> ControlFlow<()>) -> ControlFlow<()> {
        let scores = self.held.until(end);
        let heard = if scores.is_empty() { ControlFlow::Continue(()) } else { hear(Event::Scores(&scores)) };
        self.reply.scores.extend(scores);
        heard
    }

    /// Adds the text that was held back.
    pub fn finish(mut self, hear: &mut impl FnMut(Event) -> ControlFlow<()>) -> Reply {
        let mut rest = self.text.push(&std::mem::take(&mut self.stream).finish());
        rest += &self.text.finish();
        self.reply.text += &rest;
        let end = if self.text.ended { self.reply.text.len() } else { usize::MAX };
        let _ = self.release(end, hear);
        if !rest.is_empty() {
            let _ = hear(Event::Text(&rest));
        }
        self.reply
    }
}

/// Text up to the first stop text. Holds back text that may be the start of one.
struct StopText {
    words: Vec<String>,
    held: String,
    ended: bool,
}

impl StopText {
    fn new(words: Vec<String>) -> StopText {
        StopText { words, held: String::new(), ended: false }
    }

    /// Adds a piece and returns the text that is now known to be part of the reply.
    fn push(&mut self, piece: &str) -> String {
        self.held += piece;
        let words = self.words.iter().filter(|w| !w.is_empty());
        if let Some(at) = words.clone().filter_map(|w| self.held.find(w.as_str())).min() {
            self.ended = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let begun = |at: &usize| words.clone().any(|w| w.starts_with(&self.held[*at..]));
        let starts = self.held.char_indices().map(|(at, _)| at);
        let at = starts.into_iter().find(begun).unwrap_or(self.held.len());
        let held = self.held.split_off(at);
        std::mem::replace(&mut self.held, held)
    }

    /// Returns the text that was held back but did not become a stop text.
    fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_held_back_while_a_stop_may_have_begun() {
        let words = ["END".to_string(), "\n\n".to_string(), String::new()];
        let mut text = StopText::new(words.to_vec());
        assert_eq!(text.push("aE"), "a");
        assert_eq!(text.push("N"), "");
        assert_eq!(text.push("Ex\n"), "ENEx");
        assert_eq!(text.push("é\n"), "\né");
        assert_eq!((text.push("\nmore END"), text.ended), (String::new(), true));

        let mut text = StopText::new(words.to_vec());
        assert_eq!(text.push("say EN"), "say ");
        assert_eq!((text.finish(), text.ended), ("EN".to_string(), false));
        assert_eq!(StopText::new(Vec::new()).push("END"), "END");
    }

    /// The earliest stop text ends the reply, whatever its position in the list.
    #[test]
    fn the_first_stop_in_the_text_ends_it() {
        let words = ["two".to_string(), "one".to_string()];
        let mut text = StopText::new(words.to_vec());
        assert_eq!((text.push("zero one two"), text.ended), ("zero ".to_string(), true));
    }
}
