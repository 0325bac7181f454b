//! What a run does between its first and its last step, wherever it runs: the program prints it, a page shows it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use web_time::Instant;

use super::{Frozen, Prepared, optimizer};
use crate::adapter::lora::{Adapter, Pair, Slot};
use crate::adapter::{self, Format};
use crate::gpu::{Gpu, GpuError};
use crate::model::Model;
use crate::recipe::Recipe;
use crate::report::Report;
use crate::run::checkpoint::Checkpoint;
use crate::run::digest::{self, Identity};
use crate::run::metrics::{self, Evaluation, Event, History, Notice, Reply, Source, Step, Timing};
use crate::talk::generate::{self, GenerateError};
use crate::train::health::Watch;
use crate::train::trainer::{self, Snapshot, TrainError, Trainer};
use crate::verify::{self, HeldOut, NoTokens, Written};

/// A run between two steps. Whose it is asks in each turn what is due, then takes the next step, and writes down what there is
/// to tell.
pub struct Course<'a> {
    /// What is to be done.
    pub recipe: &'a Recipe,
    /// Where.
    pub gpu: &'a Gpu,
    /// The base.
    pub frozen: &'a Frozen,
    /// The same on the device.
    pub model: &'a Model<'a>,
    /// Samples, steps and prompts.
    pub prepared: &'a Prepared,
    /// Digests of base and samples.
    pub identity: &'a Identity,
    /// The adapter that training starts from.
    pub initial: &'a Adapter,
    /// Made of that adapter, with room for all steps.
    pub trainer: Trainer<'a>,
    /// What was measured so far.
    pub history: History,
    /// Has seen the steps of `history`.
    pub watch: Watch,
    /// Steps that were taken or left out.
    pub step: usize,
    /// With `eval.keep_best`, the step of the best evaluation so far, and the adapter after it.
    pub best: Option<(usize, BTreeMap<Slot, Pair>)>,
}

/// A step that was taken or left out.
pub struct Recorded {
    /// What it measured.
    pub measured: Step,
    /// What it took.
    pub timing: Timing,
    /// What is to be said of it.
    pub notices: Vec<Notice>,
}

impl Course<'_> {
    /// Takes up the state of a checkpoint; fails where its lines cannot be read, and names the first.
    pub fn resume(&mut self, checkpoint: Checkpoint) -> Result<(), String> {
        let Checkpoint { step, adapter, first, second, updates, best, metrics, timing, .. } = checkpoint;
        let events = metrics::parse(&metrics).map_err(|e| format!("metrics.jsonl: {e}"))?;
        let timing = metrics::parse(&timing).map_err(|e| format!("timing.jsonl: {e}"))?;
        self.history = History::replay(events, timing);
        self.watch = Watch::default();
        self.history.steps().for_each(|step| drop(self.watch.step(step)));
        self.step = step;
        let best = best.filter(|_| self.recipe.eval.keep_best);
        self.best = best.map(|(step, pairs)| (step, pairs.unwrap_or_else(|| adapter.pairs.clone())));
        self.trainer.restore(&Snapshot { parameters: adapter.pairs, first, second, updates });
        Ok(())
    }

    /// Steps of the whole run.
    pub fn steps(&self) -> usize {
        self.prepared.steps.plans.len()
    }

    /// Whether validation is due: at both ends, and every `eval.steps`.
    pub fn evaluation_is_due(&self) -> bool {
        let (step, every) = (self.step, self.recipe.eval.steps);
        let due = step == 0 || step == self.steps() || (every > 0 && step.is_multiple_of(every));
        due && self.history.evaluated != Some(step)
    }

    /// Whether the validation loss has not fallen for `eval.early_stopping_patience` evaluations.
    pub fn stops_early(&self) -> bool {
        let patience = self.recipe.eval.early_stopping_patience;
        patience > 0 && self.history.stale >= patience
    }

    /// Whether a checkpoint is due on the way: every `output.save_steps`.
    pub fn checkpoint_is_due(&self) -> bool {
        let every = self.recipe.output.save_steps;
        every > 0 && self.step > 0 && self.step.is_multiple_of(every)
    }

    /// Takes the next step. One that is not finite is left out, as long as `train.max_skipped_steps` allows.
    pub async fn take_step(&mut self) -> Result<Recorded, TrainError> {
        let (Prepared { steps, data, .. }, index, number) = (self.prepared, self.step, self.step + 1);
        let (learning_rate, tokens) = (steps.schedule.learning_rate(index), steps.tokens(&data.train, index));
        let (skipped, allowed) = (self.history.skipped + 1, self.recipe.train.max_skipped_steps);
        let started = Instant::now();
        let result = steps.take(&self.trainer, &data.train, index, &optimizer(self.recipe)).await;
        let seconds = started.elapsed().as_secs_f64();
        let mut texts = Vec::new();
        let measured = match result {
            Ok(report) => Step::taken(number, &report, learning_rate, tokens),
            Err(TrainError::NotFinite { loss, grad_norm, rows, loss_tokens, .. }) if skipped <= allowed => {
                texts.push(format!(
                    "left out: loss {loss}, gradient norm {grad_norm}, {rows} of {loss_tokens} tokens that carry loss \
                     overflowed; {skipped} of at most {allowed} such steps"
                ));
                Step::skipped(number, loss, grad_norm, learning_rate, tokens)
            }
            Err(error) => return Err(error),
        };
        let timing = Timing {
            step: number,
            time: metrics::now(),
            seconds,
            tokens_per_second: tokens as f64 / seconds,
        };
        self.step = number;
        self.history.timing.push(timing);
        self.history.push(Event::Step(measured.clone()));
        texts.extend(self.watch.step(&measured));
        let notices = texts.into_iter().map(|text| self.notice(text)).collect();
        Ok(Recorded { measured, timing, notices })
    }

    /// Adds something that is to be said after the last step.
    pub fn notice(&mut self, notice: String) -> Notice {
        let notice = Notice { step: self.step, notice };
        self.history.push(Event::Notice(notice.clone()));
        notice
    }

    /// Scores of the validation samples, without replies; fails where a hidden state overflows. `go_on` hears before each batch
    /// how many are done; where it says no, there is nothing.
    pub async fn validate(
        &self,
        mut go_on: impl FnMut(usize) -> bool,
    ) -> Result<Option<Evaluation>, TrainError> {
        let (mut total, mut sources, mut done) = (trainer::Evaluation::default(), Vec::new(), 0);
        for file in &self.prepared.validation {
            let mut own = trainer::Evaluation::default();
            for batch in &file.batches {
                if !go_on(done) {
                    return Ok(None);
                }
                own += self.trainer.evaluate(std::slice::from_ref(batch), |_| ()).await?;
                done += 1;
            }
            total += own;
            sources.push(Source { source: file.name.clone(), scores: own.into() });
        }
        if total.not_finite > 0 {
            let (rows, tokens) = (total.not_finite, total.tokens);
            return Err(TrainError::ValidationNotFinite { step: self.step, rows, tokens });
        }
        let scores = (total.tokens > 0).then(|| total.into());
        let sources = if sources.len() > 1 { sources } else { Vec::new() };
        Ok(Some(Evaluation { step: self.step, scores, sources, replies: Vec::new() }))
    }

    /// Replies to `eval.samples`. `go_on` hears before each how many there are; where it says no, there is nothing.
    pub async fn replies(
        &self,
        mut go_on: impl FnMut(usize) -> bool,
    ) -> Result<Option<Vec<Reply>>, GenerateError> {
        let mut replies = Vec::new();
        if self.prepared.prompts.is_empty() {
            return Ok(Some(replies));
        }
        let adapter = Adapter { pairs: self.trainer.adapter().await?, ..self.initial.clone() };
        let (tokenizer, longest) = (&self.frozen.tokenizer, self.recipe.eval.max_new_tokens);
        for (text, prompt) in &self.prepared.prompts {
            if !go_on(replies.len()) {
                return Ok(None);
            }
            let one = [&prompt[..]];
            let reply = generate::greedy(self.gpu, self.model, tokenizer, &adapter, one, longest, |_| ());
            let reply = reply.await?.pop().unwrap_or_default();
            replies.push(Reply { prompt: text.clone(), reply });
        }
        Ok(Some(replies))
    }

    /// Adds an evaluation after the last step; whether it is the best so far. With `eval.keep_best` that is only one of an
    /// adapter that has moved, which is then kept.
    pub async fn evaluated(&mut self, evaluation: Evaluation) -> Result<bool, GpuError> {
        self.history.push(Event::Evaluation(evaluation));
        if !self.recipe.eval.keep_best {
            return Ok(self.history.best.is_some_and(|(step, _)| step == self.step));
        }
        let (Some(own), true) = (self.loss(self.step), self.step > 0) else { return Ok(false) };
        let best = self.best.as_ref().and_then(|(step, _)| self.loss(*step));
        if best.is_some_and(|best| own >= best) {
            return Ok(false);
        }
        let pairs = self.trainer.adapter().await?;
        // The first steps of a warm-up may not move it at all.
        let moved = pairs != self.initial.pairs;
        if moved {
            self.best = Some((self.step, pairs));
        }
        Ok(moved)
    }

    fn loss(&self, step: usize) -> Option<f64> {
        Some(self.history.evaluation(step)?.scores?.eval_loss)
    }

    /// The state after the last step.
    pub async fn checkpoint(&self) -> Result<Checkpoint, GpuError> {
        let Snapshot { parameters, first, second, updates } = self.trainer.snapshot().await?;
        let (metrics, timing) = self.history.lines();
        let best = self.best.as_ref();
        Ok(Checkpoint {
            step: self.step,
            steps: self.steps(),
            recipe: self.recipe.clone(),
            identity: self.identity.clone(),
            adapter: Adapter { pairs: parameters, ..self.initial.clone() },
            first,
            second,
            updates,
            best: best.map(|(step, pairs)| (*step, (*step != self.step).then(|| pairs.clone()))),
            metrics,
            timing,
        })
    }

    /// The adapter that the run is for, and the step after which it was that one: the best one, or the last. Fails where it
    /// equals its start.
    pub async fn result(&mut self) -> Result<(usize, Adapter), TrainError> {
        let (step, pairs) = match self.best.take() {
            Some((step, pairs)) if step != self.step => (step, pairs),
            _ => (self.step, self.trainer.adapter().await?),
        };
        match pairs == self.initial.pairs {
            true => Err(TrainError::Unmoved),
            false => Ok((step, Adapter { pairs, ..self.initial.clone() })),
        }
    }

    /// Adds what is to be said where the validation loss after `kept` steps is not below that before the first.
    pub fn judge(&mut self, kept: usize) -> Option<Notice> {
        let (before, after) = (self.loss(0)?, self.loss(kept)?);
        (after >= before).then(|| {
            self.notice(format!(
                "the validation loss did not fall: {before:.4} before training, {after:.4} after it"
            ))
        })
    }

    /// Writes `adapter` into the folder `dir` in every format of the recipe, each compared with the one in memory: on the
    /// validation samples, or on a built-in text where there are none. Fails as [`verify::write_verified_by`].
    pub async fn export(&mut self, dir: &Path, adapter: &Adapter) -> Result<Written, verify::Error> {
        let (tokenizer, layout) = (&self.frozen.tokenizer, self.frozen.layout);
        let (vocab, longest) = (self.frozen.base.config().vocab, self.trainer.capacity().tokens);
        let batches = self.prepared.validation.iter().flat_map(|file| file.batches.iter().cloned());
        let held_out = HeldOut::of_batches(batches, vocab)
            .unwrap_or_else(|NoTokens| HeldOut::built_in(tokenizer, layout, longest, vocab));
        let fingerprint = self.frozen.fingerprint.to_string();
        let (formats, options) =
            (&self.recipe.output.export, super::write_options(self.recipe, &fingerprint));
        verify::write_verified_by(&mut self.trainer, dir, formats, adapter, &options, &held_out).await
    }

    /// Writes `adapter` into the folder `dir` as PEFT's, compared with nothing. Fails as [`adapter::write()`].
    pub fn write_peft(&self, dir: &Path, adapter: &Adapter) -> Result<PathBuf, adapter::Error> {
        let fingerprint = self.frozen.fingerprint.to_string();
        let options = super::write_options(self.recipe, &fingerprint);
        adapter::write(dir, Format::Peft, adapter, self.frozen.base.config(), &options)
    }

    /// The page about the run as far as it is; `kept` is the step whose adapter was written, `adapter` its file's bytes.
    pub fn report(&self, status: &str, kept: Option<usize>, adapter: Option<&[u8]>) -> String {
        let Prepared { data, .. } = self.prepared;
        let report = Report {
            recipe: self.recipe,
            history: &self.history,
            status,
            steps: self.steps(),
            kept,
            device: &self.gpu.description(),
            base: self.frozen.base.name(),
            identity: self.identity,
            adapter_digest: adapter.map(digest::bytes),
            parameters: self.initial.parameters(),
            planned_bytes: self.trainer.plan().total(),
            train_samples: data.train.len(),
            validation_samples: data.validation.len(),
        };
        report.html()
    }
}
