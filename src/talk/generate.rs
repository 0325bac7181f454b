//! Replies: a prompt goes into the cache as far as it is not there yet, then one token after the other.

use std::ops::ControlFlow;

use crate::adapter::lora::Adapter;
use crate::data::tokenizer::{DecodeStream, Tokenizer};
use crate::gpu::{Gpu, GpuError};
use crate::model::Model;
use crate::model::decode::{Decoder, Lengths, Workspace};
use crate::talk::sampling::{Sampler, Sampling};

/// Tokens of a prompt that are taken in at once: enough to fill a device.
pub const CHUNK: usize = 512;

/// How a reply is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Longest reply, in tokens.
    pub max_new_tokens: usize,
    /// Texts that end the reply; they are not part of it.
    pub stop: Vec<String>,
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or one of [`Options::stop`] did.
    Stop,
    /// It reached [`Options::max_new_tokens`].
    Length,
    /// The sequence reached its context.
    Context,
    /// The caller wanted no more.
    Cancelled,
}

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The tokens, without the one that ended the reply.
    pub ids: Vec<u32>,
    /// Their text, up to one of [`Options::stop`]. Control tokens are spelled out.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were in the cache already.
    pub cached_tokens: usize,
}

/// Events of a running reply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// So many tokens of the prompt are in.
    Prompt(usize),
    /// The next piece of text: whole characters.
    Text(&'a str),
}

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The device failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Nothing to reply to.
    #[error("the prompt has no tokens; expected at least one")]
    Empty,
    /// More than the cache holds.
    #[error("the prompt has {found} tokens, the context holds {context}; shorten it, or raise the context")]
    TooLong {
        /// Its tokens.
        found: usize,
        /// The most there can be.
        context: usize,
    },
    /// An id that the vocabulary lacks.
    #[error("the prompt has token {id}, the vocabulary ends at {last}")]
    Token {
        /// The id.
        id: u32,
        /// The largest there is.
        last: u32,
    },
    /// Weights that give no numbers.
    #[error(
        "the logits after {tokens} tokens are not finite: the adapter, its weight or the base is damaged; try without \
         the adapter"
    )]
    NotFinite {
        /// Tokens before.
        tokens: usize,
    },
}

/// One conversation with the base, or with the base and an adapter. The common prefix of two prompts stays in the cache.
pub struct Generator<'a> {
    decoder: Decoder<'a>,
    tokenizer: &'a Tokenizer,
    workspace: &'a Workspace<'a>,
    /// Ids in the cache.
    ids: Vec<u32>,
}

impl<'a> Generator<'a> {
    /// An empty conversation.
    pub fn new(
        workspace: &'a Workspace<'a>,
        tokenizer: &'a Tokenizer,
        adapter: Option<&Adapter>,
    ) -> Result<Generator<'a>, GpuError> {
        let decoder = Decoder::new(workspace, adapter)?;
        Ok(Generator { decoder, tokenizer, workspace, ids: Vec::new() })
    }

    /// The sequence on the device.
    pub fn decoder(&mut self) -> &mut Decoder<'a> {
        &mut self.decoder
    }

    /// Replies to `prompt`. Calls `hear` with every event; `hear` may cancel the reply.
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
        let chunk = self.workspace.lengths().chunk;
        while prompt.len() - self.ids.len() > chunk {
            let next = self.ids.len() + chunk;
            self.decoder.append(&prompt[self.ids.len()..next]).await?;
            self.ids.extend(&prompt[self.ids.len()..next]);
            self.workspace.gpu().wait()?;
            if hear(Event::Prompt(next)).is_break() {
                return Ok(Reply { finish: Finish::Cancelled, ..reply });
            }
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
            // Also without text: whoever listens can break off at every token.
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

    /// Goes back to what `prompt` begins with, all but its last token at most; returns the tokens that stay.
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
        // Rows of the embedding beyond the vocabulary belong to no token; such files are rare.
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

/// Greedy replies to `prompts`, each a conversation of its own, of at most `max_new_tokens` tokens. `done` is called with the
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

/// Text up to the first of some words, held back as long as one of them may have begun.
struct StopText<'a> {
    words: &'a [String],
    held: String,
    ended: bool,
}

impl StopText<'_> {
    fn new(words: &[String]) -> StopText<'_> {
        StopText { words, held: String::new(), ended: false }
    }

    /// The text that is now known to be part of the reply.
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

    /// Withheld text that did not become a stop text.
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

    /// The earliest stop text counts, in any order of the list.
    #[test]
    fn the_first_stop_in_the_text_ends_it() {
        let words = ["two".to_string(), "one".to_string()];
        let mut text = StopText::new(&words);
        assert_eq!((text.push("zero one two"), text.ended), ("zero ".to_string(), true));
    }
}
