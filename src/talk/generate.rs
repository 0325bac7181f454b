//! Generating replies: the part of the prompt that is not in the cache yet is processed first, then one token at a time is
//! generated.

use std::ops::ControlFlow;

use crate::adapter::lora::Adapter;
use crate::data::tokenizer::{DecodeStream, Tokenizer};
use crate::gpu::{Gpu, GpuError};
use crate::model::Model;
pub use crate::model::decode::CHUNK;
use crate::model::decode::{Decoder, Lengths, Workspace};
use crate::talk::sampling::{Sampler, Sampling};

/// Settings for generating a reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Choice of tokens.
    pub sampling: Sampling,
    /// Maximum number of tokens in a reply.
    pub max_new_tokens: usize,
    /// Texts that end the reply and are not part of it.
    pub stop: Vec<String>,
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
}

/// Events during a reply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// Number of prompt tokens that have been processed.
    Prompt(usize),
    /// The next piece of text: whole characters.
    Text(&'a str),
}

/// Why no reply was generated.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The device failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// An empty prompt.
    #[error("the prompt has no tokens; expected at least one")]
    Empty,
    /// A prompt longer than the context.
    #[error(
        "the prompt has {found} tokens, but the context holds {context}; shorten it, or raise the context"
    )]
    TooLong {
        /// Number of tokens in the prompt.
        found: usize,
        /// Maximum number of tokens.
        context: usize,
    },
    /// A token id outside the vocabulary.
    #[error("the prompt has token {id}, but the vocabulary ends at {last}")]
    Token {
        /// The id.
        id: u32,
        /// The largest valid id.
        last: u32,
    },
    /// Logits that are not finite.
    #[error(
        "the logits after {tokens} tokens are not finite: the adapter, its weight or the base is damaged; try without \
         the adapter"
    )]
    NotFinite {
        /// Number of tokens before.
        tokens: usize,
    },
}

/// A conversation with the base, with or without an adapter. The common prefix of two prompts stays in the cache.
pub struct Generator<'a> {
    decoder: Decoder<'a>,
    tokenizer: &'a Tokenizer,
    workspace: &'a Workspace<'a>,
    /// Ids in the cache.
    ids: Vec<u32>,
}

impl<'a> Generator<'a> {
    /// Starts an empty conversation.
    pub fn new(
        workspace: &'a Workspace<'a>,
        tokenizer: &'a Tokenizer,
        adapter: Option<&Adapter>,
    ) -> Result<Generator<'a>, GpuError> {
        let decoder = Decoder::new(workspace, adapter)?;
        Ok(Generator { decoder, tokenizer, workspace, ids: Vec::new() })
    }

    /// Forgets the conversation, so that the next reply does not depend on earlier ones, not even by rounding.
    pub fn reset(&mut self) {
        self.decoder.rewind(0);
        self.ids.clear();
    }

    /// The sequence on the device.
    pub fn decoder(&mut self) -> &mut Decoder<'a> {
        &mut self.decoder
    }

    /// Replies to `prompt`. Calls `hear` for every event; `hear` may cancel the reply.
    pub async fn reply(
        &mut self,
        prompt: &[u32],
        options: &Options,
        mut hear: impl FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Reply, GenerateError> {
        let cached_tokens = self.keep_common(prompt)?;
        let mut reply = Reply {
            ids: Vec::new(),
            text: String::new(),
            finish: Finish::Length,
            prompt_tokens: prompt.len(),
            cached_tokens,
        };
        if self.read_prompt(prompt, &mut hear).await?.is_break() {
            return Ok(Reply { finish: Finish::Cancelled, ..reply });
        }
        let mut sampler = Sampler::new(options.sampling, prompt);
        let mut text = StopText::new(&options.stop);
        let mut stream = DecodeStream::default();
        let mut next = prompt[self.ids.len()..].to_vec();
        while reply.ids.len() < options.max_new_tokens {
            if self.ids.len() + next.len() > self.workspace.lengths().context {
                reply.finish = Finish::Context;
                break;
            }
            let id = self.choose(&next, &mut sampler).await?;
            self.ids.append(&mut next);
            if self.tokenizer.eos().contains(&id) {
                reply.finish = Finish::Stop;
                break;
            }
            reply.ids.push(id);
            next.push(id);
            let piece = text.push(&stream.push(self.tokenizer, id));
            reply.text += &piece;
            if text.ended {
                reply.finish = Finish::Stop;
            }
            // Emitted even if the text is empty, so that the caller can cancel after every token.
            if hear(Event::Text(&piece)).is_break() {
                reply.finish = Finish::Cancelled;
            }
            if reply.finish != Finish::Length {
                return Ok(reply);
            }
        }
        let mut rest = text.push(&stream.finish());
        rest += &text.finish();
        if !rest.is_empty() {
            reply.text += &rest;
            let _ = hear(Event::Text(&rest));
        }
        Ok(reply)
    }

    /// Decodes `prompt` in chunks, except for the last chunk, whose logits choose the first token of the reply.
    async fn read_prompt(
        &mut self,
        prompt: &[u32],
        hear: &mut impl FnMut(Event) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, GenerateError> {
        let chunk = self.workspace.lengths().chunk;
        while prompt.len() - self.ids.len() > chunk {
            let next = self.ids.len() + chunk;
            self.decoder.append(&prompt[self.ids.len()..next]).await?;
            self.ids.extend(&prompt[self.ids.len()..next]);
            self.workspace.gpu().wait()?;
            if hear(Event::Prompt(next)).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Rewinds to the longest common prefix with `prompt`, leaving at least one token to process. Returns the number of tokens
    /// kept.
    fn keep_common(&mut self, prompt: &[u32]) -> Result<usize, GenerateError> {
        let context = self.workspace.lengths().context;
        let last = self.tokenizer.vocab_size() as u32 - 1;
        match prompt {
            [] => return Err(GenerateError::Empty),
            _ if prompt.len() > context => {
                return Err(GenerateError::TooLong { found: prompt.len(), context });
            }
            _ => {}
        }
        if let Some(&id) = prompt.iter().find(|&&id| id > last) {
            return Err(GenerateError::Token { id, last });
        }
        let common = self.ids.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let kept = self.decoder.rewind(common.min(prompt.len() - 1));
        self.ids.truncate(kept);
        Ok(kept)
    }

    async fn choose(&mut self, ids: &[u32], sampler: &mut Sampler) -> Result<u32, GenerateError> {
        let tokens = self.ids.len() + ids.len();
        // Rows of the output matrix beyond the vocabulary belong to no token; few files have such rows.
        let vocab = self.tokenizer.vocab_size();
        if sampler.is_greedy() && vocab == self.workspace.vocab() {
            let likeliest = self.decoder.likeliest(ids).await?;
            return match likeliest.is_finite() {
                true => Ok(likeliest.index),
                false => Err(GenerateError::NotFinite { tokens }),
            };
        }
        let mut logits = self.decoder.logits(ids).await?;
        logits.truncate(vocab);
        sampler.next(&mut logits).ok_or(GenerateError::NotFinite { tokens })
    }
}

/// Greedy replies to `prompts`, each a separate conversation of at most `max_new_tokens` new tokens. `done` is called with the
/// number of replies so far.
pub async fn greedy(
    gpu: &Gpu,
    model: &Model<'_>,
    tokenizer: &Tokenizer,
    adapter: &Adapter,
    prompts: impl IntoIterator<Item = &[u32], IntoIter: Clone>,
    max_new_tokens: usize,
    mut done: impl FnMut(usize),
) -> Result<Vec<String>, GenerateError> {
    let prompts = prompts.into_iter();
    let context = prompts.clone().map(|p| p.len() + max_new_tokens).max().unwrap_or(0);
    if context == 0 {
        return Ok(Vec::new());
    }
    let workspace = Workspace::stream(gpu, model, Lengths { context, chunk: CHUNK }, adapter.rank).await?;
    let mut generator = Generator::new(&workspace, tokenizer, Some(adapter))?;
    let options = Options { sampling: Sampling::GREEDY, max_new_tokens, stop: Vec::new() };
    let mut replies = Vec::new();
    for prompt in prompts {
        replies.push(generator.reply(prompt, &options, |_| ControlFlow::Continue(())).await?.text);
        done(replies.len());
    }
    Ok(replies)
}

/// Text up to the first stop text. Holds back text that may be the start of one.
struct StopText<'a> {
    words: &'a [String],
    held: String,
    ended: bool,
}

impl StopText<'_> {
    fn new(words: &[String]) -> StopText<'_> {
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
        let mut text = StopText::new(&words);
        assert_eq!(text.push("aE"), "a");
        assert_eq!(text.push("N"), "");
        assert_eq!(text.push("Ex\n"), "ENEx");
        assert_eq!(text.push("é\n"), "\né");
        assert_eq!((text.push("\nmore END"), text.ended), (String::new(), true));

        let mut text = StopText::new(&words);
        assert_eq!(text.push("say EN"), "say ");
        assert_eq!((text.finish(), text.ended), ("EN".to_string(), false));
        assert_eq!(StopText::new(&[]).push("END"), "END");
    }

    /// The earliest stop text ends the reply, whatever its position in the list.
    #[test]
    fn the_first_stop_in_the_text_ends_it() {
        let words = ["two".to_string(), "one".to_string()];
        let mut text = StopText::new(&words);
        assert_eq!((text.push("zero one two"), text.ended), ("zero ".to_string(), true));
    }
}
