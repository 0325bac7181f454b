//! Evaluations on the way: validation, replies, and which adapter is the best so far.

use anyhow::{Result, bail};
use pollster::block_on;
use rullama_train::generate;
use rullama_train::lora::Adapter;
use rullama_train::metrics::{self, Evaluation, Event, Reply};
use rullama_train::train;

use super::{Best, Run};

impl Run<'_> {
    /// Validation and replies; false where somebody asked to stop meanwhile, and nothing was measured.
    pub(super) fn evaluate(&mut self) -> Result<bool> {
        let batches = self.session.prepared.validation.iter().map(|file| file.batches.len()).sum();
        let bar = self.console.phase("validation", batches);
        let (mut total, mut sources) = (train::Evaluation::default(), Vec::new());
        for file in &self.session.prepared.validation {
            let mut own = train::Evaluation::default();
            for batch in &file.batches {
                if self.stop.asked() {
                    bar.finish_and_clear();
                    return Ok(false);
                }
                own += block_on(self.trainer.evaluate(std::slice::from_ref(batch), |_| {}))?;
                bar.inc(1);
            }
            total += own;
            sources.push(metrics::Source { source: file.name.clone(), scores: own.into() });
        }
        bar.finish_and_clear();
        if total.not_finite > 0 {
            bail!(
                "validation after step {}: {} of {} tokens overflow, their hidden states or logits are not finite, so that \
                 the loss means nothing. Lower train.learning_rate",
                self.step,
                total.not_finite,
                total.tokens
            );
        }
        let Some(replies) = self.replies()? else { return Ok(false) };
        let scores = (total.tokens > 0).then(|| total.into());
        let sources = if sources.len() > 1 { sources } else { Vec::new() };
        let evaluation = Evaluation { step: self.step, scores, sources, replies };
        self.record.push(Event::Evaluation(evaluation.clone()))?;
        let is_best = self.is_best()?;
        self.console.evaluation(&evaluation, is_best);
        self.console.start_steps(self.step);
        Ok(true)
    }

    /// Whether the last evaluation is the best one; with `keep_best`, of an adapter that has moved, which is then kept.
    fn is_best(&mut self) -> Result<bool> {
        if !self.recipe.eval.keep_best {
            return Ok(self.record.history.best.is_some_and(|(step, _)| step == self.step));
        }
        let loss = |step: usize| Some(self.record.history.evaluation(step)?.scores?.eval_loss);
        let (Some(own), true) = (loss(self.step), self.step > 0) else { return Ok(false) };
        let best = self.best.as_ref().and_then(|best| loss(best.step));
        if best.is_some_and(|best| own >= best) {
            return Ok(false);
        }
        let pairs = block_on(self.trainer.adapter())?;
        // The first steps of a warm-up may not move it at all.
        let moved = pairs != self.initial.pairs;
        if moved {
            self.best = Some(Best { step: self.step, pairs });
        }
        Ok(moved)
    }

    /// `None` where somebody asked to stop meanwhile.
    fn replies(&self) -> Result<Option<Vec<Reply>>> {
        let bar = self.console.phase("replies", self.session.prepared.prompts.len());
        let adapter = Adapter { pairs: block_on(self.trainer.adapter())?, ..self.initial.clone() };
        let (tokenizer, longest) = (&self.session.frozen.tokenizer, self.recipe.eval.max_new_tokens);
        let mut replies = Vec::new();
        for (text, prompt) in &self.session.prepared.prompts {
            if self.stop.asked() {
                bar.finish_and_clear();
                return Ok(None);
            }
            let one = [&prompt[..]];
            let reply = generate::greedy(self.gpu, self.model, tokenizer, &adapter, one, longest, |_| ());
            let reply = block_on(reply)?.pop().unwrap_or_default();
            replies.push(Reply { prompt: text.clone(), reply });
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(Some(replies))
    }
}
