//! A run between its first and its last step.

use std::collections::BTreeMap;
use std::path::Path;

use rullama_train::batch::MicroBatch;
use rullama_train::checkpoint::Checkpoint;
use rullama_train::export::{self, HeldOut, NoTokens};
use rullama_train::health::Watch;
use rullama_train::lora::{Adapter, Pair, Slot};
use rullama_train::metrics::{self, Evaluation, History, Notice, Reply, Step, Timing};
use rullama_train::recipe::Recipe;
use rullama_train::report::{self, Report};
use rullama_train::train::{self, Snapshot, TrainError, Trainer};
use rullama_train::{digest, files, generate, run};
use web_time::{Instant, SystemTime, UNIX_EPOCH};

use super::Opened;
use crate::control::Control;
use crate::engine::Stage;
use crate::tree;
use crate::types::{Event, FileEntry, Problem};

/// Where checkpoints are written before they are told.
const CHECKPOINTS: &str = ".checkpoints";
/// The output folder: what is in it at the end is told.
const OUT: &str = ".out";

pub struct Course<'a> {
    stage: &'a Stage<'a>,
    recipe: &'a Recipe,
    opened: &'a Opened,
    trainer: Trainer<'a>,
    control: &'a Control,
    hear: &'a dyn Fn(&Event),
    history: History,
    watch: Watch,
    /// Steps that were taken or left out.
    step: usize,
    /// Steps at the last checkpoint.
    saved: Option<usize>,
    /// The best evaluation so far, and its adapter.
    best: Option<(usize, BTreeMap<Slot, Pair>)>,
}

/// Why no further step is taken.
#[derive(PartialEq)]
enum End {
    Last,
    Early,
    Asked,
}

impl<'a> Course<'a> {
    pub fn begin(
        stage: &'a Stage<'a>,
        recipe: &'a Recipe,
        opened: &'a Opened,
        trainer: Trainer<'a>,
        checkpoint: Option<Checkpoint>,
        control: &'a Control,
        hear: &'a dyn Fn(&Event),
    ) -> Result<Course<'a>, Problem> {
        let (mut history, mut watch) = (History::default(), Watch::default());
        let (mut step, mut best) = (0, None);
        if let Some(c) = checkpoint {
            let unreadable = |e: String| Problem::new(format!("the checkpoint's metrics: {e}"));
            let events = metrics::parse(&c.metrics).map_err(unreadable)?;
            history = History::replay(events, metrics::parse(&c.timing).map_err(unreadable)?);
            history.steps().for_each(|step| drop(watch.step(step)));
            if recipe.eval.keep_best {
                best = c.best.map(|(step, pairs)| (step, pairs.unwrap_or_else(|| c.adapter.pairs.clone())));
            }
            step = c.step;
            let Checkpoint { adapter, first, second, updates, .. } = c;
            trainer.restore(&Snapshot { parameters: adapter.pairs, first, second, updates });
        }
        let saved = (step > 0).then_some(step);
        Ok(Course { stage, recipe, opened, trainer, control, hear, history, watch, step, saved, best })
    }

    /// To the end, which is told.
    pub async fn run(mut self) -> Result<(), Problem> {
        match self.steps_to_the_end().await? {
            End::Asked => self.stopped().await,
            _ => self.finished().await,
        }
    }

    fn steps(&self) -> usize {
        self.opened.prepared.steps.plans.len()
    }

    /// Each turn does what is due after the steps so far, then takes the next.
    async fn steps_to_the_end(&mut self) -> Result<End, Problem> {
        let patience = self.recipe.eval.early_stopping_patience;
        let save_steps = self.recipe.output.save_steps;
        loop {
            if self.evaluation_is_due() && !self.evaluate().await? {
                return Ok(End::Asked);
            }
            let early = patience > 0 && self.history.stale >= patience;
            if early || self.step == self.steps() {
                self.save().await?;
                return Ok(if early { End::Early } else { End::Last });
            }
            if save_steps > 0 && self.step > 0 && self.step.is_multiple_of(save_steps) {
                self.save().await?;
            }
            self.listen().await?;
            if self.control.is_stopped() {
                return Ok(End::Asked);
            }
            self.take_step().await?;
        }
    }

    /// Does what was asked meanwhile: waits as long as the run is paused, and tells checkpoints.
    async fn listen(&mut self) -> Result<(), Problem> {
        let mut paused = false;
        loop {
            if self.control.wants_checkpoint() {
                self.saved = None;
                self.save().await?;
            }
            if !self.control.is_paused() {
                break;
            }
            if !paused {
                (self.hear)(&Event::Paused { step: self.step });
                paused = true;
            }
            self.control.changed().await;
        }
        if paused && !self.control.is_stopped() {
            (self.hear)(&Event::Resumed { step: self.step });
        }
        Ok(())
    }

    fn evaluation_is_due(&self) -> bool {
        let every = self.recipe.eval.steps;
        let due =
            self.step == 0 || self.step == self.steps() || (every > 0 && self.step.is_multiple_of(every));
        due && self.history.evaluated != Some(self.step)
    }

    /// Validation and replies; false where somebody asked to stop meanwhile, and nothing was measured.
    async fn evaluate(&mut self) -> Result<bool, Problem> {
        let prepared = &self.opened.prepared;
        let (mut total, mut sources) = (train::Evaluation::default(), Vec::new());
        for file in &prepared.validation {
            let mut own = train::Evaluation::default();
            for batch in &file.batches {
                if self.control.is_stopped() {
                    return Ok(false);
                }
                own += self.trainer.evaluate(std::slice::from_ref(batch), |_| ()).await?;
            }
            total += own;
            sources.push(metrics::Source { source: file.name.clone(), scores: own.into() });
        }
        if total.not_finite > 0 {
            return Err(Problem::new(format!(
                "validation after step {}: {} of {} tokens overflow, their hidden states or logits are not finite, so that \
                 the loss means nothing. Lower train.learning_rate",
                self.step, total.not_finite, total.tokens
            )));
        }
        let Some(replies) = self.replies().await? else { return Ok(false) };
        let scores = (total.tokens > 0).then(|| total.into());
        let sources = if sources.len() > 1 { sources } else { Vec::new() };
        let evaluation = Evaluation { step: self.step, scores, sources, replies };
        self.history.push(metrics::Event::Evaluation(evaluation.clone()));
        let best = self.is_best().await?;
        (self.hear)(&Event::Eval { step: self.step, scores: scores.map(Into::into), best });
        for Reply { prompt, reply } in evaluation.replies {
            (self.hear)(&Event::Sample { step: self.step, prompt, reply });
        }
        Ok(true)
    }

    /// `None` where somebody asked to stop meanwhile.
    async fn replies(&self) -> Result<Option<Vec<Reply>>, Problem> {
        let Stage { gpu, frozen, model } = *self.stage;
        let prompts = &self.opened.prepared.prompts;
        let mut replies = Vec::new();
        if prompts.is_empty() {
            return Ok(Some(replies));
        }
        let adapter = Adapter { pairs: self.trainer.adapter().await?, ..self.initial().clone() };
        let longest = self.recipe.eval.max_new_tokens;
        for (text, prompt) in prompts {
            if self.control.is_stopped() {
                return Ok(None);
            }
            let one = [&prompt[..]];
            let reply = generate::greedy(gpu, model, &frozen.tokenizer, &adapter, one, longest, |_| ());
            let reply = reply.await?.pop().unwrap_or_default();
            replies.push(Reply { prompt: text.clone(), reply });
        }
        Ok(Some(replies))
    }

    /// Whether the last evaluation is the best one; with `keep_best`, of an adapter that has moved, which is then kept.
    async fn is_best(&mut self) -> Result<bool, Problem> {
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
        let moved = pairs != self.initial().pairs;
        if moved {
            self.best = Some((self.step, pairs));
        }
        Ok(moved)
    }

    fn loss(&self, step: usize) -> Option<f64> {
        Some(self.history.evaluation(step)?.scores?.eval_loss)
    }

    fn initial(&self) -> &Adapter {
        &self.opened.loaded.adapter
    }

    async fn take_step(&mut self) -> Result<(), Problem> {
        let (prepared, number) = (&self.opened.prepared, self.step + 1);
        let step = prepared.steps.step(&prepared.data.train, self.step);
        let learning_rate = prepared.steps.schedule.learning_rate(self.step);
        let tokens: usize = step.micro_batches.iter().map(MicroBatch::len).sum();
        let optimizer = run::optimizer(self.recipe);
        if number < self.steps() {
            self.trainer.announce(&prepared.steps.step(&prepared.data.train, number));
        }
        let started = Instant::now();
        let result = self.trainer.step(&step, number as u64, &optimizer, learning_rate).await;
        let seconds = started.elapsed().as_secs_f64();
        let mut notices = Vec::new();
        let measured = match result {
            Ok(report) => Step::taken(number, &report, learning_rate, tokens),
            Err(TrainError::NotFinite { loss, grad_norm, rows, loss_tokens, .. }) if self.may_skip() => {
                let (skipped, allowed) = (self.history.skipped + 1, self.recipe.train.max_skipped_steps);
                notices.push(format!(
                    "left out: loss {loss}, gradient norm {grad_norm}, {rows} of {loss_tokens} tokens that carry loss \
                     overflowed; {skipped} of at most {allowed} such steps"
                ));
                Step::skipped(number, loss, grad_norm, learning_rate, tokens)
            }
            Err(error @ TrainError::NotFinite { .. }) => {
                // What was done is not lost.
                self.save().await?;
                return Err(error.into());
            }
            Err(error) => return Err(error.into()),
        };
        self.step = number;
        let timing =
            Timing { step: number, time: now(), seconds, tokens_per_second: tokens as f64 / seconds };
        notices.extend(self.watch.step(&measured));
        self.history.timing.push(timing);
        self.history.push(metrics::Event::Step(measured.clone()));
        (self.hear)(&Event::of_step(&measured, &timing, self.history.smoothed));
        notices.into_iter().for_each(|notice| self.notice(notice));
        Ok(())
    }

    fn may_skip(&self) -> bool {
        self.history.skipped < self.recipe.train.max_skipped_steps
    }

    fn notice(&mut self, notice: String) {
        let step = self.step;
        self.history.push(metrics::Event::Notice(Notice { step, notice: notice.clone() }));
        (self.hear)(&Event::Notice { step, notice });
    }

    /// Tells the state after the last step, unless it was told already.
    async fn save(&mut self) -> Result<(), Problem> {
        if self.saved == Some(self.step) {
            return Ok(());
        }
        let Snapshot { parameters, first, second, updates } = self.trainer.snapshot().await?;
        let (metrics, timing) = self.lines();
        let best = self.best.as_ref();
        let checkpoint = Checkpoint {
            step: self.step,
            steps: self.steps(),
            recipe: self.recipe.clone(),
            identity: self.opened.identity.clone(),
            adapter: Adapter { pairs: parameters, ..self.initial().clone() },
            first,
            second,
            updates,
            best: best.map(|(step, pairs)| (*step, (*step != self.step).then(|| pairs.clone()))),
            metrics,
            timing,
        };
        let folder = Path::new(CHECKPOINTS);
        checkpoint.write(folder, &self.stage.frozen.fingerprint).map_err(Problem::new)?;
        (self.hear)(&Event::Checkpoint { step: self.step, files: tree::take(folder) });
        self.saved = Some(self.step);
        Ok(())
    }

    fn lines(&self) -> (String, String) {
        let metrics = self.history.events.iter().map(metrics::line).collect();
        (metrics, self.history.timing.iter().map(metrics::line).collect())
    }

    /// Somebody asked: what was done is told, to go on from.
    async fn stopped(mut self) -> Result<(), Problem> {
        if self.step > 0 {
            self.save().await?;
        }
        let pairs = self.trainer.adapter().await?;
        let adapter = match pairs == self.initial().pairs {
            true => None,
            false => {
                let adapter = Adapter { pairs, ..self.initial().clone() };
                let config = self.stage.frozen.base.config();
                let path = Path::new(OUT);
                export::write(
                    path,
                    export::Format::Peft,
                    &adapter,
                    config,
                    &self.options(&self.fingerprint()),
                )?;
                Some(tree::take(path))
            }
        };
        let (seconds, _) = self.history.speed();
        let (step, files) = (self.step, Vec::new());
        (self.hear)(&Event::Done { step, adapter_of_step: step, stopped: true, adapter, files, seconds });
        Ok(())
    }

    fn fingerprint(&self) -> String {
        self.stage.frozen.fingerprint.to_string()
    }

    fn options<'o>(&'o self, fingerprint: &'o str) -> export::Options<'o> {
        let base_model = self.recipe.output.base_model_name.as_deref().unwrap_or(&self.recipe.model.base);
        export::Options { base_model, dropout: self.recipe.lora.dropout, fingerprint: Some(fingerprint) }
    }

    /// Tells the adapter and everything about it.
    async fn finished(mut self) -> Result<(), Problem> {
        let best = self.best.take().filter(|(step, _)| *step != self.step);
        let kept = best.as_ref().map_or(self.step, |(step, _)| *step);
        let pairs = match best {
            Some((_, pairs)) => pairs,
            None => self.trainer.adapter().await?,
        };
        if pairs == self.initial().pairs {
            return Err(Problem::new(
                "training changed nothing: the adapter equals its start. Check train.learning_rate, and that the run has \
                 more than its warm-up steps",
            ));
        }
        if let (Some(before), Some(after)) = (self.loss(0), self.loss(kept))
            && after >= before
        {
            self.notice(format!(
                "the validation loss did not fall: {before:.4} before training, {after:.4} after it"
            ));
        }
        let adapter = Adapter { pairs, ..self.initial().clone() };
        let out = Path::new(OUT);
        self.export(out, &adapter).await?;
        self.write_report(out, kept)?;
        let files = tree::take(out);
        let of_peft = |file: &&FileEntry| file.path.starts_with("adapter_");
        let mut peft: Vec<FileEntry> = files.iter().filter(of_peft).cloned().collect();
        if peft.len() != 2 {
            let config = self.stage.frozen.base.config();
            export::write(out, export::Format::Peft, &adapter, config, &self.options(&self.fingerprint()))?;
            peft = tree::take(out);
        }
        let (seconds, _) = self.history.speed();
        (self.hear)(&Event::Done {
            step: self.step,
            adapter_of_step: kept,
            stopped: false,
            adapter: Some(peft),
            files,
            seconds,
        });
        Ok(())
    }

    /// Writes every format of the recipe, each compared with the adapter in memory.
    async fn export(&mut self, out: &Path, adapter: &Adapter) -> Result<(), Problem> {
        let frozen = self.stage.frozen;
        let (vocab, longest) = (frozen.base.config().vocab, self.trainer.capacity().tokens);
        let batches = self.opened.prepared.validation.iter().flat_map(|file| file.batches.iter().cloned());
        let held_out = HeldOut::of_batches(batches, vocab)
            .unwrap_or_else(|NoTokens| HeldOut::built_in(&frozen.tokenizer, frozen.layout, longest, vocab));
        let base_model = self.recipe.output.base_model_name.as_deref().unwrap_or(&self.recipe.model.base);
        let fingerprint = self.fingerprint();
        let options = export::Options {
            base_model,
            dropout: self.recipe.lora.dropout,
            fingerprint: Some(&fingerprint),
        };
        let formats = &self.recipe.output.export;
        let written =
            export::write_verified_by(&mut self.trainer, out, formats, adapter, &options, &held_out).await?;
        for (format, result) in written.formats {
            if let Err(error) = result {
                self.notice(format!("{} was not exported: {error}", format.name()));
            }
        }
        Ok(())
    }

    fn write_report(&self, out: &Path, kept: usize) -> Result<(), Problem> {
        let (frozen, data) = (self.stage.frozen, &self.opened.prepared.data);
        let adapter = files::read(&out.join("adapter_model.safetensors")).ok();
        let report = Report {
            recipe: self.recipe,
            history: &self.history,
            status: "finished",
            steps: self.steps(),
            kept: Some(kept),
            device: &self.stage.gpu.description(),
            base: frozen.base.name(),
            identity: &self.opened.identity,
            adapter_digest: adapter.map(|bytes| digest::bytes(&bytes)),
            parameters: self.initial().parameters(),
            planned_bytes: self.trainer.plan().total(),
            train_samples: data.train.len(),
            validation_samples: data.validation.len(),
        };
        let (metrics, timing) = self.lines();
        let resolved = self.recipe.pinned(&frozen.fingerprint).to_resolved_toml();
        let texts = [
            (report::FILE, report.html()),
            ("metrics.jsonl", metrics),
            ("timing.jsonl", timing),
            ("recipe.resolved.toml", resolved),
        ];
        for (name, text) in texts {
            files::write_atomic(&out.join(name), text.as_bytes()).map_err(Problem::new)?;
        }
        Ok(())
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}
