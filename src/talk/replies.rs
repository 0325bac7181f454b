//! Replies to many prompts at once.

use std::collections::HashMap;
use std::ops::ControlFlow;

use crate::adapter::lora::Adapter;
use crate::data::tokenizer::Tokenizer;
use crate::gpu::GpuError;
use crate::model::decode::Workspace;
use crate::talk::engine::{Chosen, Engine, Heard, Job};
use crate::talk::error::GenerateError;
use crate::talk::reply::{Draft, Event, Finish, Options, Reply};

/// Conversations of one reply, over one workspace and with one adapter. A reply depends on its prompt and options alone.
pub struct Replies<'a> {
    engine: Engine<'a>,
    tokenizer: &'a Tokenizer,
    drafts: HashMap<usize, Draft>,
    /// Replies of no tokens.
    empty: Vec<(usize, Reply)>,
}

/// News of a reply.
#[derive(Debug)]
pub enum News<'a> {
    /// It goes on.
    Event(Event<'a>),
    /// It has ended.
    Done(Reply),
    /// It has ended without a reply.
    Failed(GenerateError),
}

impl<'a> Replies<'a> {
    /// Room for the sequences of a workspace that is for several, [`Workspace::for_sequences`].
    pub fn new(
        workspace: &'a Workspace<'a>,
        tokenizer: &'a Tokenizer,
        adapter: Option<&Adapter>,
    ) -> Result<Replies<'a>, GpuError> {
        let engine = Engine::new(workspace, tokenizer, adapter)?;
        let (drafts, empty) = Default::default();
        Ok(Replies { engine, tokenizer, drafts, empty })
    }

    /// Keeps what was computed for a prompt and its reply for a prompt that begins with them. By rounding, a reply then depends on those before.
    pub fn keep_prefixes(self) -> Replies<'a> {
        Replies { engine: self.engine.keep_prefixes(), ..self }
    }

    /// Compiles the kernels, so that no reply waits for them.
    pub fn compile(&mut self) -> Result<(), GpuError> {
        self.engine.compile()
    }

    /// Lets a prompt wait for its reply, number `of`, which no other reply that is not done yet has.
    pub fn push(&mut self, of: usize, prompt: &[u32], options: &Options) -> Result<(), GenerateError> {
        let Options { sampling, max_new_tokens, logprobs: top, ref stop } = *options;
        let draft = Draft::new(stop.clone(), prompt.len(), 0);
        if max_new_tokens == 0 {
            self.empty.push((of, draft.reply));
            return Ok(());
        }
        self.engine.push(of, Job { prompt: prompt.to_vec(), sampling, max_new_tokens, top })?;
        self.drafts.insert(of, draft);
        Ok(())
    }

    /// Whether no prompt waits for a reply.
    pub fn is_idle(&self) -> bool {
        self.empty.is_empty() && self.engine.is_idle()
    }

    /// Adds a token to as many replies as there is room for. `hear` gets the news of each, by its number, and may cancel it after an event.
    pub async fn advance(
        &mut self,
        mut hear: impl FnMut(usize, News) -> ControlFlow<()>,
    ) -> Result<(), GpuError> {
        for (of, reply) in self.empty.drain(..) {
            let _ = hear(of, News::Done(reply));
        }
        let (tokenizer, drafts) = (self.tokenizer, &mut self.drafts);
        let mut on_event = |of: usize, heard: Heard| {
            let Some(mut draft) = drafts.remove(&of) else { return ControlFlow::Break(()) };
            let mut own = |event: Event| hear(of, News::Event(event));
            let chosen = match heard {
                Heard::Prompt(cached) => {
                    draft.reply.cached_tokens = cached;
                    let flow = own(Event::Prompt(draft.reply.prompt_tokens));
                    if flow.is_break() {
                        draft.reply.finish = Finish::Cancelled;
                        let _ = hear(of, News::Done(draft.reply));
                    } else {
                        drafts.insert(of, draft);
                    }
                    return flow;
                }
                Heard::Failed(error) => return hear(of, News::Failed(error)),
                Heard::Token(chosen) => chosen,
            };
            match add(draft, chosen, tokenizer, &mut own) {
                Ok(draft) => {
                    drafts.insert(of, draft);
                    ControlFlow::Continue(())
                }
                Err(reply) => {
                    let _ = hear(of, News::Done(*reply));
                    ControlFlow::Break(())
                }
            }
        };
        self.engine.advance(&mut on_event).await
    }

    /// Replies to all prompts, numbered from 0, in any order. `hear` may cancel a reply after an event, and what is left once one is done.
    pub async fn reply(
        &mut self,
        prompts: &[(&[u32], &Options)],
        mut hear: impl FnMut(usize, News) -> ControlFlow<()>,
    ) -> Result<(), GenerateError> {
        self.clear();
        for (of, &(prompt, options)) in prompts.iter().enumerate() {
            self.push(of, prompt, options)?;
        }
        let (mut stopped, mut failed) = (false, None);
        while !self.is_idle() && !stopped && failed.is_none() {
            let listen = |of: usize, news: News| match news {
                News::Event(_) => hear(of, news),
                News::Done(_) if stopped => ControlFlow::Break(()),
                News::Done(_) => {
                    stopped = hear(of, news).is_break();
                    ControlFlow::Break(())
                }
                News::Failed(error) => {
                    failed.get_or_insert(error);
                    ControlFlow::Break(())
                }
            };
            self.advance(listen).await?;
        }
        failed.map_or(Ok(()), Err)
    }

    fn clear(&mut self) {
        self.engine.clear();
        self.drafts.clear();
        self.empty.clear();
    }
}

/// Adds a token to a draft. Returns the reply if it ends.
fn add(
    mut draft: Draft,
    chosen: Chosen,
    tokenizer: &Tokenizer,
    hear: &mut impl FnMut(Event) -> ControlFlow<()>,
) -> Result<Draft, Box<Reply>> {
    if chosen.finish == Some(Finish::Stop) {
        draft.reply.finish = Finish::Stop;
        draft.reply.end = chosen.score;
        return Err(Box::new(draft.finish(hear)));
    }
    if draft.push(tokenizer, chosen.id, chosen.score, hear).is_break() {
        draft.reply.finish = Finish::Cancelled;
    }
    // Behind a stop text there is nothing to add.
    if draft.reply.finish != Finish::Length {
        return Err(Box::new(draft.reply));
    }
    let Some(finish) = chosen.finish else { return Ok(draft) };
    draft.reply.finish = finish;
    Err(Box::new(draft.finish(hear)))
}
