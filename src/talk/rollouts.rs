//! Completions of many prompts at once, with the log-probability of every token.

use std::ops::ControlFlow;

use crate::adapter::lora::Adapter;
use crate::data::tokenizer::Tokenizer;
use crate::gpu::GpuError;
use crate::model::decode::Workspace;
pub use crate::talk::completion::{Completion, Event, Request};
use crate::talk::engine::{Engine, Heard, Job};
use crate::talk::error::GenerateError;
use crate::talk::generate::Generator;
use crate::talk::reply::Finish;

/// Sequences over one workspace and with one adapter. A completion depends on its request alone, not on those beside it.
pub struct Batch<'a> {
    way: Way<'a>,
}

/// Together or one after the other, as the workspace allows.
enum Way<'a> {
    Together(Engine<'a>),
    Alone(Generator<'a>),
}

impl<'a> Batch<'a> {
    /// Room for the sequences of a workspace, with `adapter` unmerged, or with the base alone. A workspace that is not for several sequences
    /// ([`Workspace::for_sequences`]) makes one completion after the other.
    pub fn new(
        workspace: &'a Workspace<'a>,
        tokenizer: &'a Tokenizer,
        adapter: Option<&Adapter>,
    ) -> Result<Batch<'a>, GpuError> {
        let way = match workspace.is_for_sequences() {
            true => Way::Together(Engine::new(workspace, tokenizer, adapter)?),
            false => Way::Alone(Generator::new(workspace, tokenizer, adapter)?),
        };
        Ok(Batch { way })
    }

    /// Completes all `requests`, in any order, and returns the completions in theirs. `hear` may cancel what is left. Equal prompts are
    /// read once for all sequences that begin together.
    pub async fn complete(
        &mut self,
        requests: &[Request],
        mut hear: impl FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Vec<Completion>, GenerateError> {
        let cancelled = Completion { ids: Vec::new(), logprobs: Vec::new(), finish: Finish::Cancelled };
        let mut completions = vec![cancelled; requests.len()];
        match &mut self.way {
            Way::Together(engine) => together(engine, requests, &mut completions, &mut hear).await?,
            Way::Alone(generator) => {
                for (of, request) in requests.iter().enumerate() {
                    generator.reset();
                    let chosen = |id| hear(Event::Token { of, id });
                    completions[of] = generator.complete(request, chosen).await?;
                    if completions[of].finish == Finish::Cancelled || hear(Event::Done(of)).is_break() {
                        break;
                    }
                }
            }
        }
        Ok(completions)
    }
}

async fn together(
    engine: &mut Engine<'_>,
    requests: &[Request],
    completions: &mut [Completion],
    hear: &mut impl FnMut(Event) -> ControlFlow<()>,
) -> Result<(), GenerateError> {
    engine.clear();
    for (of, request) in requests.iter().enumerate() {
        let Request { prompt, sampling, max_new_tokens } = request.clone();
        match max_new_tokens {
            0 => {
                completions[of].finish = Finish::Length;
                if hear(Event::Done(of)).is_break() {
                    return Ok(());
                }
            }
            _ => engine.push(of, Job { prompt, sampling, max_new_tokens, top: None })?,
        }
    }
    let (mut stopped, mut failed) = (false, None);
    while !engine.is_idle() && !stopped && failed.is_none() {
        let mut on_event = |of: usize, heard: Heard| {
            let chosen = match heard {
                Heard::Prompt => return ControlFlow::Continue(()),
                Heard::Token(chosen) => chosen,
                Heard::Failed(error) => {
                    failed.get_or_insert(error);
                    return ControlFlow::Break(());
                }
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
    }
    engine.clear();
    failed.map_or(Ok(()), Err)
}
