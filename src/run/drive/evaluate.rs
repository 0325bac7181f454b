//! Evaluations during a run: validation scores, metrics of generated answers, and replies.

use std::collections::BTreeMap;

use super::answers::Answer;
use super::compared::Compared;
use super::host::{heard, hearing};
use super::metrics::{Evaluation, MetricsEvent, SampleReply, SourceScores, new_loops};
use super::warnings;
use super::{DriveError, Host, Phase, Run, RunEvent, answers};
use crate::adapter::lora::Adapter;
use crate::recipe::Metric;
use crate::talk::ending::Ending;
use crate::train::objective::{Score, Tally};
use crate::train::{LossTotals, TrainError};

impl Run<'_> {
    /// Whether an evaluation is due: before the first step, after the last, and every `eval.steps`.
    pub(super) fn evaluation_is_due(&self) -> bool {
        self.evaluation_follows(self.step) && self.history.evaluated != Some(self.step)
    }

    /// Whether an evaluation comes after step `step`.
    pub(super) fn evaluation_follows(&self, step: usize) -> bool {
        let every = self.recipe.eval.steps;
        step == 0 || step == self.steps() || (every > 0 && step.is_multiple_of(every))
    }

    /// Evaluates the model after the last step. Returns false, and records nothing, if the user asked to stop meanwhile.
    pub(super) async fn evaluate<H: Host>(&mut self, host: &mut H) -> Result<bool, H::Error> {
        let Some(mut evaluation) = self.validate(host).await? else { return Ok(false) };
        let Some(held_out) = self.examine(host).await? else { return Ok(false) };
        evaluation.preference.extend(held_out);
        let Some(replies) = self.replies(host).await? else { return Ok(false) };
        evaluation.replies = replies;
        let Some(metrics) = self.metrics(host).await? else { return Ok(false) };
        evaluation.metric_samples = if metrics.is_empty() { 0 } else { self.prepared.questions.len() };
        evaluation.metrics = metrics;
        let loops = self.new_loops(&evaluation.replies);
        self.history.push(MetricsEvent::Evaluation(evaluation.clone()));
        let is_best = self.update_best().await?;
        host.on_event(self, RunEvent::Evaluation { evaluation: &evaluation, is_best })?;
        let apart = warnings::after_evaluation(&self.history);
        loops.into_iter().chain(apart).try_for_each(|warning| self.warn(warning, host))?;
        Ok(true)
    }

    /// Measures held-out samples in the objective's own way. `None` if the user asked to stop.
    async fn examine<H: Host>(&mut self, host: &mut H) -> Result<Option<BTreeMap<String, f64>>, H::Error> {
        let mut batches = self.batches.take().expect("no step is being decided");
        let mut failed = None;
        let found = batches.evaluate(&self.trainer, &mut hearing(self, host, &mut failed)).await;
        self.batches = Some(batches);
        heard(found, failed)
    }

    /// A warning if replies repeat themselves that did not before training. It is told once for a prompt.
    fn new_loops(&self, replies: &[SampleReply]) -> Option<String> {
        let first = self.history.evaluation(0)?;
        let told = |prompt: &str| {
            let others = self.history.evaluations().filter(|e| e.step > 0);
            others.flat_map(|e| &e.replies).any(|r| r.prompt == prompt && r.ending == Some(Ending::Loop))
        };
        let mut prompts = new_loops(&first.replies, replies);
        prompts.retain(|prompt| !told(prompt));
        (!prompts.is_empty()).then(|| {
            format!(
                "the reply to {} now repeats itself, which it did not before training: lower train.learning_rate, or train less",
                quoted(&prompts)
            )
        })
    }

    /// Scores the validation samples. `None` if the user asked to stop. Fails if a hidden state overflows.
    async fn validate<H: Host>(&self, host: &mut H) -> Result<Option<Evaluation>, H::Error> {
        let of = self.prepared.validation.iter().map(|file| file.batches.len()).sum();
        let ranks = self.trainer.ranks();
        let mut total = LossTotals::default();
        let mut sources = Vec::new();
        let (mut done, mut first) = (0, 0);
        let mut compared = Compared::default();
        for file in &self.prepared.validation {
            let mut of_file = LossTotals::default();
            let step = file.step(&self.prepared.data.validation, first).map_err(DriveError::from)?;
            first += file.count;
            let comparison = step.comparison.unwrap_or_default();
            let kl = self.trainer.moved(&comparison).await.map_err(DriveError::from)?;
            let (mut tally, mut scores) = (Tally::new(kl), Vec::new());
            // The processes score one batch each at a time; the sums are in the order of the batches.
            for round in step.micro_batches.chunks(ranks.size()) {
                host.on_event(self, RunEvent::Progress { phase: Phase::Validation, done, of })?;
                if ranks.largest(host.is_stopping().into()).map_err(DriveError::from)? > 0 {
                    return Ok(None);
                }
                let own = match round.get(ranks.rank()) {
                    Some(batch) => self.trainer.validate(batch).await,
                    None => Ok((Vec::new(), LossTotals::default())),
                };
                let (own_scores, own) = own.map_err(DriveError::from)?;
                let mut bytes = own.to_bytes();
                bytes.extend(own_scores.into_iter().flat_map(Score::to_bytes));
                for bytes in ranks.gather(&bytes).map_err(DriveError::from)?.iter().take(round.len()) {
                    let (totals, own_scores) = bytes.split_at(LossTotals::BYTES);
                    of_file += LossTotals::from_bytes(totals);
                    scores.extend(Score::from_bytes(own_scores));
                }
                done += round.len();
            }
            total += of_file;
            let objective = &self.prepared.steps.comparing.objective;
            if let Some(preference) = objective.preference() {
                tally.add(preference, &scores, &comparison.samples);
            }
            let scores = compared.add(objective, &tally, &comparison, of_file);
            sources.push(SourceScores { source: file.name.clone(), scores });
        }
        if total.not_finite > 0 {
            let (rows, tokens) = (total.not_finite, total.tokens);
            let error = TrainError::ValidationNotFinite { step: self.step, rows, tokens };
            return Err(DriveError::from(error).into());
        }
        let scores = (total.tokens > 0).then(|| compared.scores(total));
        let preference = compared.metrics();
        let sources = if sources.len() > 1 { sources } else { Vec::new() };
        Ok(Some(Evaluation { step: self.step, scores, sources, preference, ..Evaluation::default() }))
    }

    /// Generates replies to `eval.samples`. `None` if the user asked to stop.
    async fn replies<H: Host>(&self, host: &mut H) -> Result<Option<Vec<SampleReply>>, H::Error> {
        let prompts: Vec<&[u32]> = self.prepared.prompts.iter().map(|(_, ids)| &ids[..]).collect();
        let Some(replies) = self.answers(&prompts, Phase::Replies, host).await? else { return Ok(None) };
        let texts = self.prepared.prompts.iter().map(|(text, _)| text.clone());
        Ok(Some(texts.zip(replies).map(|(prompt, answer)| SampleReply::new(prompt, answer)).collect()))
    }

    /// Generates answers and returns the value of each of `eval.metrics`. `None` if the user asked to stop.
    async fn metrics<H: Host>(&self, host: &mut H) -> Result<Option<BTreeMap<Metric, f64>>, H::Error> {
        let questions = &self.prepared.questions;
        let prompts: Vec<&[u32]> = questions.iter().map(|question| &question.prompt[..]).collect();
        let answers = self.answers(&prompts, Phase::Answers, host).await?;
        Ok(answers.map(|answers| answers::scores(&self.recipe.eval, questions, &answers)))
    }

    async fn answers<H: Host>(
        &self,
        prompts: &[&[u32]],
        phase: Phase,
        host: &mut H,
    ) -> Result<Option<Vec<Answer>>, H::Error> {
        if prompts.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let pairs = self.trainer.adapter().await.map_err(DriveError::from)?;
        let adapter = Adapter { pairs, ..self.initial.clone() };
        let ranks = self.trainer.ranks();
        let (size, of) = (ranks.size(), prompts.len());
        let before = |done: usize| {
            host.on_event(self, RunEvent::Progress { phase, done: (done * size).min(of), of })?;
            Ok(!host.is_stopping())
        };
        // Answers do not depend on each other.
        let own: Vec<&[u32]> = prompts.iter().copied().skip(ranks.rank()).step_by(size).collect();
        let longest = self.recipe.eval.max_new_tokens;
        let generated = answers::generate::<H::Error>(
            answers::Room::of(&self.trainer),
            self.base,
            &adapter,
            (&own, of),
            longest,
            before,
        )
        .await?;
        if size == 1 {
            return Ok(generated);
        }
        let bytes = serde_json::to_vec(&generated).expect("a list of answers");
        let all = ranks.gather(&bytes).map_err(DriveError::from)?;
        let parse = |bytes: &Vec<u8>| serde_json::from_slice(bytes).expect("what another rank has written");
        let parsed: Vec<Option<Vec<Answer>>> = all.iter().map(parse).collect();
        let Some(parsed) = parsed.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
        Ok(Some((0..of).map(|i| parsed[i % size][i / size].clone()).collect()))
    }

    /// Whether the evaluation after the last step is the best so far. With `eval.keep_best`, only evaluations of an adapter
    /// that differs from the initial one count, and the adapter is kept.
    async fn update_best(&mut self) -> Result<bool, DriveError> {
        if !self.recipe.eval.keep_best {
            return Ok(self.history.best.is_some_and(|(step, _)| step == self.step));
        }
        let merit = |step| self.history.evaluation(step)?.merit(self.recipe.eval.best_metric.metric());
        let (Some(found), true) = (merit(self.step), self.step > 0) else { return Ok(false) };
        let best = self.best.as_ref().and_then(|(step, _)| merit(*step));
        if best.is_some_and(|best| found <= best) {
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

/// Prompts in quotation marks.
pub(super) fn quoted(prompts: &[&str]) -> String {
    prompts.iter().map(|prompt| format!("{prompt:?}")).collect::<Vec<_>>().join(" and ")
}
