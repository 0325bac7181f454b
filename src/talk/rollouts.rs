//! Completions of many prompts at once, with the log-probability of every token.

use std::ops::ControlFlow;

use crate::adapter::lora::Adapter;
use crate::data::tokenizer::Tokenizer;
use crate::gpu::GpuError;
use crate::model::decode::Workspace;
pub use crate::talk::completion::{Completion, Event, Request};
use crate::talk::engine::{Engine, Heard, Job};
use crate::talk::error::GenerateError;
use crate::talk::reply::Finish;

/// Sequences over one workspace and with one adapter. A completion depends on its request alone, not on those beside it.
pub struct Batch<'a> {
    engine: Engine<'a>,
}

impl<'a> Batch<'a> {
    /// Room for the sequences of a workspace that is for several, [`Workspace::for_sequences`], with `adapter` unmerged, or with the base
    /// alone.
    pub fn new(
        workspace: &'a Workspace<'a>,
        tokenizer: &'a Tokenizer,
        adapter: Option<&Adapter>,
    ) -> Result<Batch<'a>, GpuError> {
        Ok(Batch { engine: Engine::new(workspace, tokenizer, adapter)? })
    }

    /// Completes all `requests`, in any order, and returns the completions in theirs. `hear` may cancel what is left. Equal prompts are
    /// read once for all sequences that begin together.
    pub async fn complete(
        &mut self,
        requests: &[Request],
        mut hear: impl FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Vec<Completion>, GenerateError> {
        let engine = &mut self.engine;
        engine.clear();
        let cancelled = Completion { ids: Vec::new(), logprobs: Vec::new(), finish: Finish::Cancelled };
        let mut completions = vec![cancelled; requests.len()];
        for (of, request) in requests.iter().enumerate() {
            let Request { prompt, sampling, max_new_tokens } = request.clone();
            match max_new_tokens {
                0 => {
                    completions[of].finish = Finish::Length;
                    if hear(Event::Done(of)).is_break() {
                        return Ok(completions);
                    }
                }
                _ => engine.push(of, Job { prompt, sampling, max_new_tokens, top: None })?,
            }
        }
        let (mut stopped, mut failed) = (false, None);
        while !engine.is_idle() && !stopped {
            let mut on_event = |of: usize, heard: Heard| {
                let chosen = match heard {
                    Heard::Prompt(_) => return ControlFlow::Continue(()),
                    Heard::Failed(error) => {
                        failed.get_or_insert(error);
                        return ControlFlow::Break(());
                    }
                    Heard::Token(chosen) => chosen,
                };
                if stopped {
                    return ControlFlow::Break(());
                }
                let completion = &mut completions[of];
                completion.ids.push(chosen.id);
                completion.logprobs.push(chosen.logprob);
                stopped |= hear(Event::Token { of, id: chosen.id }).is_break();
                if let Some(finish) = chosen.finish {
                    completion.finish = finish;
                    stopped |= hear(Event::Done(of)).is_break();
                }
                if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            engine.advance(&mut on_event).await?;
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(completions)
    }
}
