//! Generating replies: the part of the prompt that is not in the cache yet is processed first, then one token at a time is
//! generated.

use std::ops::ControlFlow;

use crate::adapter::lora::Adapter;
use crate::data::tokenizer::Tokenizer;
use crate::gpu::{Gpu, GpuError};
use crate::model::Model;
pub use crate::model::decode::CHUNK;
use crate::model::decode::{Decoder, Lengths, Scoring, Workspace};
pub use crate::talk::error::GenerateError;
use crate::talk::error::check;
use crate::talk::reply::Draft;
pub use crate::talk::reply::{Event, Finish, Options, Reply};
use crate::talk::sampling::{Sampler, Sampling};
use crate::talk::scores::{MAX_TOP, Score};

/// A conversation with the base, with or without an adapter. The common prefix of two prompts stays in the cache.
pub struct Generator<'a> {
    decoder: Decoder<'a>,
    tokenizer: &'a Tokenizer,
    workspace: &'a Workspace<'a>,
    /// Ids in the cache.
    ids: Vec<u32>,
    /// Buffers for the scores of prompts, once there was one.
    scoring: Option<Scoring>,
}

impl<'a> Generator<'a> {
    /// Starts an empty conversation.
    pub fn new(
        workspace: &'a Workspace<'a>,
        tokenizer: &'a Tokenizer,
        adapter: Option<&Adapter>,
    ) -> Result<Generator<'a>, GpuError> {
        let decoder = Decoder::new(workspace, adapter)?;
        Ok(Generator { decoder, tokenizer, workspace, ids: Vec::new(), scoring: None })
    }

    /// Forgets the conversation, so that the next reply does not depend on earlier ones, not even by rounding.
    pub fn reset(&mut self) {
        self.decoder.rewind(0);
        self.ids.clear();
    }

    /// Compiles the kernels of [`Generator::scores`], so that no prompt waits for them.
    pub fn compile_scores(&self) -> Result<(), GpuError> {
        self.decoder.compile_scores(&Scoring::new(self.workspace, MAX_TOP)?).map(drop)
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
        let mut draft = Draft::new(options.stop.clone(), prompt.len(), self.keep_common(prompt)?);
        if options.max_new_tokens == 0 {
            return Ok(draft.reply);
        }
        if self.read_prompt(prompt, &mut hear).await?.is_break() {
            return Ok(Reply { finish: Finish::Cancelled, ..draft.reply });
        }
        let mut sampler = Sampler::new(options.sampling, prompt);
        let mut next = prompt[self.ids.len()..].to_vec();
        while draft.reply.ids.len() < options.max_new_tokens {
            if self.ids.len() + next.len() > self.workspace.lengths().context {
                draft.reply.finish = Finish::Context;
                break;
            }
            let (id, score) = self.choose(&next, &mut sampler, options.logprobs).await?;
            self.ids.append(&mut next);
            if self.tokenizer.eos().contains(&id) {
                draft.reply.finish = Finish::Stop;
                draft.reply.end = score;
                break;
            }
            next.push(id);
            if draft.push(self.tokenizer, id, score, &mut hear).is_break() {
                draft.reply.finish = Finish::Cancelled;
            }
            if draft.reply.finish != Finish::Length {
                return Ok(draft.reply);
            }
        }
        Ok(draft.finish(&mut hear))
    }

    /// The scores of the tokens of `prompt` but the first, with up to `top` of the likeliest tokens beside each. Forgets the
    /// conversation. `None` if `hear` cancels.
    pub async fn scores(
        &mut self,
        prompt: &[u32],
        top: usize,
        mut hear: impl FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Option<Vec<Score>>, GenerateError> {
        self.reset();
        self.keep_common(prompt)?;
        let top = top.min(MAX_TOP);
        if self.scoring.is_none() {
            self.scoring = Some(Scoring::new(self.workspace, MAX_TOP)?);
        }
        let scoring = self.scoring.as_ref().expect("made above");
        let (chunk, vocab) = (self.workspace.lengths().chunk, self.tokenizer.vocab_size());
        let mut scores = Vec::with_capacity(prompt.len());
        for (ids, targets) in prompt[..prompt.len() - 1].chunks(chunk).zip(prompt[1..].chunks(chunk)) {
            let rows = self.decoder.scores(ids, targets, scoring, vocab, top).await?;
            for (row, &id) in rows.iter().zip(targets) {
                let tokens = scores.len() + 1;
                scores.push(Score::of_row(row, id).ok_or(GenerateError::NotFinite { tokens })?);
            }
            self.ids.extend(ids);
            if hear(Event::Prompt(self.ids.len())).is_break() {
                return Ok(None);
            }
        }
        Ok(Some(scores))
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
        check(prompt, self.workspace.lengths().context, self.tokenizer)?;
        let common = self.ids.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let kept = self.decoder.rewind(common.min(prompt.len() - 1));
        self.ids.truncate(kept);
        Ok(kept)
    }

    /// Appends `ids` and chooses the token after them. With `logprobs`, also returns its score.
    async fn choose(
        &mut self,
        ids: &[u32],
        sampler: &mut Sampler,
        logprobs: Option<usize>,
    ) -> Result<(u32, Option<Score>), GenerateError> {
        let tokens = self.ids.len() + ids.len();
        // Rows of the output matrix beyond the vocabulary belong to no token; few files have such rows.
        let vocab = self.tokenizer.vocab_size();
        if sampler.is_greedy() && vocab == self.workspace.vocab() && logprobs.is_none() {
            let likeliest = self.decoder.likeliest(ids).await?;
            return match likeliest.is_finite() {
                true => Ok((likeliest.index, None)),
                false => Err(GenerateError::NotFinite { tokens }),
            };
        }
        let mut logits = self.decoder.logits(ids).await?;
        logits.truncate(vocab);
        // The sampler changes the logits that it chooses by.
        let own = logprobs.map(|top| (logits.clone(), top.min(MAX_TOP)));
        let id = sampler.next(&mut logits).ok_or(GenerateError::NotFinite { tokens })?;
        let score = own.map(|(logits, top)| Score::of(&logits, id, top));
        match score {
            Some(None) => Err(GenerateError::NotFinite { tokens }),
            score => Ok((id, score.flatten())),
        }
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
    let options = Options { sampling: Sampling::GREEDY, max_new_tokens, stop: Vec::new(), logprobs: None };
    let mut replies = Vec::new();
    for prompt in prompts {
        replies.push(generator.reply(prompt, &options, |_| ControlFlow::Continue(())).await?.text);
        done(replies.len());
    }
    Ok(replies)
}
