//! Evaluations during a run: validation scores and replies.

use super::metrics::{Evaluation, MetricsEvent, SampleReply, SourceScores};
use super::{DriveError, Host, Phase, Run, RunEvent};
use crate::adapter::lora::Adapter;
use crate::talk::generate;
use crate::train::{LossTotals, TrainError};

impl Run<'_> {
    /// Whether an evaluation is due: before the first step, after the last, and every `eval.steps`.
    pub(super) fn evaluation_is_due(&self) -> bool {
        let every = self.recipe.eval.steps;
        let at_an_end = self.step == 0 || self.step == self.steps();
        let due = at_an_end || (every > 0 && self.step.is_multiple_of(every));
        due && self.history.evaluated != Some(self.step)
    }

    /// Evaluates the model after the last step. Returns false, and records nothing, if the user asked to stop meanwhile.
    pub(super) async fn evaluate<H: Host>(&mut self, host: &mut H) -> Result<bool, H::Error> {
        let Some(mut evaluation) = self.validate(host).await? else { return Ok(false) };
        let Some(replies) = self.replies(host).await? else { return Ok(false) };
        evaluation.replies = replies;
        self.history.push(MetricsEvent::Evaluation(evaluation.clone()));
        let is_best = self.update_best().await?;
        host.on_event(self, RunEvent::Evaluation { evaluation: &evaluation, is_best })?;
        Ok(true)
    }

    /// Scores the validation samples. `None` if the user asked to stop. Fails if a hidden state overflows.
    async fn validate<H: Host>(&self, host: &mut H) -> Result<Option<Evaluation>, H::Error> {
        let of = self.prepared.validation.iter().map(|file| file.batches.len()).sum();
        let mut total = LossTotals::default();
        let mut sources = Vec::new();
        let mut done = 0;
        for file in &self.prepared.validation {
            let mut of_file = LossTotals::default();
            for batch in &file.batches {
                host.on_event(self, RunEvent::Progress { phase: Phase::Validation, done, of })?;
                if host.is_stopping() {
                    return Ok(None);
                }
                let found = self.trainer.evaluate(std::slice::from_ref(batch), |_| ()).await;
                of_file += found.map_err(DriveError::from)?;
                done += 1;
            }
            total += of_file;
            sources.push(SourceScores { source: file.name.clone(), scores: of_file.into() });
        }
        if total.not_finite > 0 {
            let (rows, tokens) = (total.not_finite, total.tokens);
            let error = TrainError::ValidationNotFinite { step: self.step, rows, tokens };
            return Err(DriveError::from(error).into());
        }
        let scores = (total.tokens > 0).then(|| total.into());
        let sources = if sources.len() > 1 { sources } else { Vec::new() };
        Ok(Some(Evaluation { step: self.step, scores, sources, replies: Vec::new() }))
    }

    /// Generates replies to `eval.samples`. `None` if the user asked to stop.
    async fn replies<H: Host>(&self, host: &mut H) -> Result<Option<Vec<SampleReply>>, H::Error> {
        let mut replies = Vec::new();
        if self.prepared.prompts.is_empty() {
            return Ok(Some(replies));
        }
        let pairs = self.trainer.adapter().await.map_err(DriveError::from)?;
        let adapter = Adapter { pairs, ..self.initial.clone() };
        let longest = self.recipe.eval.max_new_tokens;
        for (text, prompt) in &self.prepared.prompts {
            let (done, of) = (replies.len(), self.prepared.prompts.len());
            host.on_event(self, RunEvent::Progress { phase: Phase::Replies, done, of })?;
            if host.is_stopping() {
                return Ok(None);
            }
            let tokenizer = &self.base.tokenizer;
            let one = [&prompt[..]];
            let reply =
                generate::greedy(self.gpu(), self.model(), tokenizer, &adapter, one, longest, |_| ()).await;
            let reply = reply.map_err(DriveError::from)?.pop().unwrap_or_default();
            replies.push(SampleReply { prompt: text.clone(), reply });
        }
        Ok(Some(replies))
    }

    /// Whether the evaluation after the last step is the best so far. With `eval.keep_best`, only evaluations of an adapter
    /// that differs from the initial one count, and the adapter is kept.
    async fn update_best(&mut self) -> Result<bool, DriveError> {
        if !self.recipe.eval.keep_best {
            return Ok(self.history.best.is_some_and(|(step, _)| step == self.step));
        }
        let (Some(loss), true) = (self.eval_loss(self.step), self.step > 0) else { return Ok(false) };
        let best = self.best.as_ref().and_then(|(step, _)| self.eval_loss(*step));
        if best.is_some_and(|best| loss >= best) {
            return Ok(false);
        }
        let pairs = self.trainer.adapter().await?;
        // The first steps of a warm-up may not move the adapter at all.
        let moved = pairs != self.initial.pairs;
        if moved {
            self.best = Some((self.step, pairs));
        }
        Ok(moved)
    }

    /// The validation loss after `step` steps, where it is known.
    pub(super) fn eval_loss(&self, step: usize) -> Option<f64> {
        Some(self.history.evaluation(step)?.scores?.eval_loss)
    }
}
