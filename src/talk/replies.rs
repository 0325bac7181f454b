//! Replies to many prompts at once.

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
}

impl<'a> Replies<'a> {
    /// Room for the sequences of a workspace that is for several, [`Workspace::for_sequences`].
    pub fn new(
        workspace: &'a Workspace<'a>,
        tokenizer: &'a Tokenizer,
        adapter: Option<&Adapter>,
    ) -> Result<Replies<'a>, GpuError> {
        Ok(Replies { engine: Engine::new(workspace, tokenizer, adapter)?, tokenizer })
    }

    /// Replies to all prompts. `hear` gets the events of each, by its index, and may cancel that reply. `done` gets every reply once it is
    /// there, in any order, and may cancel what is left.
    pub async fn reply(
        &mut self,
        prompts: &[(&[u32], &Options)],
        mut hear: impl FnMut(usize, Event) -> ControlFlow<()>,
        mut done: impl FnMut(usize, Reply) -> ControlFlow<()>,
    ) -> Result<(), GenerateError> {
        self.engine.clear();
        let mut stopped = false;
        let mut drafts = Vec::new();
        for (of, &(prompt, options)) in prompts.iter().enumerate() {
            let draft = Draft::new(options, prompt.len(), 0);
            if options.max_new_tokens == 0 {
                stopped |= done(of, draft.reply).is_break();
                drafts.push(None);
                continue;
            }
            let Options { sampling, max_new_tokens, logprobs: top, .. } = *options;
            self.engine.push(of, Job { prompt: prompt.to_vec(), sampling, max_new_tokens, top })?;
            drafts.push(Some(draft));
        }
        let tokenizer = self.tokenizer;
        while !self.engine.is_idle() && !stopped {
            let mut on_event = |of: usize, heard: Heard| {
                let Some(draft) = drafts[of].take() else { return ControlFlow::Break(()) };
                let mut own = |event: Event| hear(of, event);
                let chosen = match heard {
                    Heard::Prompt => {
                        let flow = own(Event::Prompt(prompts[of].0.len()));
                        drafts[of] = Some(draft);
                        return flow;
                    }
                    Heard::Token(chosen) => chosen,
                };
                match add(draft, chosen, tokenizer, &mut own) {
                    Ok(draft) => {
                        drafts[of] = Some(draft);
                        ControlFlow::Continue(())
                    }
                    Err(reply) => {
                        stopped |= done(of, *reply).is_break();
                        ControlFlow::Break(())
                    }
                }
            };
            self.engine.advance(&mut on_event).await?;
        }
        Ok(())
    }
}

/// Adds a token to a draft. Returns the reply if it ends.
fn add<'a>(
    mut draft: Draft<'a>,
    chosen: Chosen,
    tokenizer: &Tokenizer,
    hear: &mut impl FnMut(Event) -> ControlFlow<()>,
) -> Result<Draft<'a>, Box<Reply>> {
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
