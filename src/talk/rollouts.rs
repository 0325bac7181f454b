//! Completions of many prompts at once, with the log-probability of every token.

use std::ops::ControlFlow;

use crate::adapter::lora::Adapter;
use crate::data::tokenizer::Tokenizer;
use crate::gpu::GpuError;
use crate::model::decode::Workspace;
pub use crate::talk::completion::{Completion, Event, Request};
use crate::talk::generate::{Finish, GenerateError, Generator};

/// Sequences over one workspace and with one adapter. A completion depends on its request alone, not on those beside it.
pub struct Batch<'a> {
    generator: Generator<'a>,
}

impl<'a> Batch<'a> {
    /// Room for sequences with `adapter` unmerged, or with the base alone.
    pub fn new(
        workspace: &'a Workspace<'a>,
        tokenizer: &'a Tokenizer,
        adapter: Option<&Adapter>,
    ) -> Result<Batch<'a>, GpuError> {
        Ok(Batch { generator: Generator::new(workspace, tokenizer, adapter)? })
    }

    /// Completes all `requests`, in any order, and returns the completions in theirs. `hear` may cancel what is left.
    pub async fn complete(
        &mut self,
        requests: &[Request],
        mut hear: impl FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Vec<Completion>, GenerateError> {
        let cancelled = Completion { ids: Vec::new(), logprobs: Vec::new(), finish: Finish::Cancelled };
        let mut completions = vec![cancelled; requests.len()];
        for (of, request) in requests.iter().enumerate() {
            self.generator.reset();
            completions[of] = self.generator.complete(request, |id| hear(Event::Token { of, id })).await?;
            if completions[of].finish == Finish::Cancelled || hear(Event::Done(of)).is_break() {
                break;
            }
        }
        Ok(completions)
    }
}
