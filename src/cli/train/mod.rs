//! The main job: a recipe becomes an adapter.

mod console;
mod lock;
mod record;
mod resume;
mod state;
mod stop;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use pollster::block_on;
use rullama_train::batch::MicroBatch;
use rullama_train::checkpoint::{self, Checkpoint};
use rullama_train::digest::{self, Identity};
use rullama_train::export::{self, Format};
use rullama_train::files;
use rullama_train::generate;
use rullama_train::gpu::Gpu;
use rullama_train::lora::{Adapter, Pair, Slot};
use rullama_train::metrics::{self, Evaluation, Event, Notice, Reply, Step, Timing};
use rullama_train::recipe::Recipe;
use rullama_train::report::{self, Report};
use rullama_train::run;
use rullama_train::train::{self, Snapshot, TrainError, Trainer};
use serde_json::{Value, json};

use super::session::Session;
use super::show;
use console::{Console, Voice};
use record::{Record, now};
use state::Status;
use stop::Stop;

/// How to go about it.
#[derive(Args)]
pub struct How {
    /// Start anew, even where a run that was stopped could go on.
    #[arg(long, requires = "recipe")]
    fresh: bool,
    /// Print errors only.
    #[arg(long, requires = "recipe")]
    quiet: bool,
    /// Print one JSON object a line: what happens, as it happens.
    #[arg(long, requires = "recipe", conflicts_with = "quiet")]
    json: bool,
}

impl How {
    fn voice(&self) -> Voice {
        match (self.json, self.quiet) {
            (true, _) => Voice::Json,
            (_, true) => Voice::Quiet,
            _ => Voice::Words,
        }
    }
}

/// Trains, evaluates on the way, and writes the output folder; goes on where a run of this recipe was stopped.
pub fn run(recipe: &Recipe, args: &How) -> Result<ExitCode> {
    let dir = &recipe.output.dir;
    lock::check(dir)?;
    let (session, initial) = Session::start(recipe)?;
    if recipe.eval.early_stopping_patience > 0 && session.validation.is_empty() {
        bail!(
            "eval.early_stopping_patience needs validation samples: set data.valid or data.val_size, or remove it"
        );
    }
    let data = &session.data;
    let identity = Identity::of(&session.frozen.base, &data.train, &data.validation);
    let start = resume::find(recipe, &session, &identity, args.fresh)?;
    let resumed_at = start.checkpoint.as_ref().map_or(0, |c| c.step);
    check_space(recipe, &initial)?;
    let gpu = Session::device(recipe)?;
    if args.voice() == Voice::Words {
        show::start(recipe, &session, &initial, &gpu);
    }

    let steps = session.steps.plans.len();
    let loading = Console::new(args.voice(), steps, 0);
    let bar = loading.phase("loading the base", 0);
    let model = session.model(&gpu)?;
    let trainer = session.trainer(recipe, &gpu, &model, &initial)?;
    bar.finish_and_clear();
    if args.voice() == Voice::Words {
        show::plan(trainer.plan(), false);
    }
    let bar = loading.phase("trying the longest batch", 0);
    let tried = session.dry_pass(&trainer)?;
    bar.finish_and_clear();
    loading.line("tried", &tried);

    // Only now: a run that cannot start leaves an earlier one's files as they are.
    let _lock = lock::Lock::take(dir)?;
    start.obsolete.iter().try_for_each(|path| files::remove_folder(path))?;
    files::remove_unfinished(dir)?;
    files::write_atomic(&dir.join("recipe.resolved.toml"), recipe.to_resolved_toml().as_bytes())?;
    let (metrics, timing) = start.checkpoint.as_ref().map_or(("", ""), |c| (&c.metrics, &c.timing));
    let record = Record::begin(dir, metrics, timing)?;
    let memory = gpu.allocated_bytes().unwrap_or(trainer.plan().total());
    let mut run = Run {
        recipe,
        session: &session,
        initial: &initial,
        identity,
        gpu: &gpu,
        trainer: &trainer,
        record,
        console: Console::new(args.voice(), steps, memory),
        stop: Stop::listen()?,
        started: now(),
        step: resumed_at,
        best: None,
    };
    run.begin(start.checkpoint, &start.notices)?;
    run.train()
}

/// Refuses a disk that has no room for what the run writes.
fn check_space(recipe: &Recipe, adapter: &Adapter) -> Result<()> {
    let dir = &recipe.output.dir;
    let existing = dir.ancestors().find(|p| p.is_dir()).unwrap_or(Path::new("."));
    // What a disk does not tell does not stop a run.
    let Ok(free) = fs4::available_space(existing) else { return Ok(()) };
    let matrices = 4 * adapter.parameters() as u64;
    // Adapter, two moments and the best adapter; one more than are kept while it is written.
    let more = (recipe.output.save_total_limit + 1).saturating_sub(checkpoint::list(dir).len()).max(1);
    let needed = 4 * matrices * more as u64 + matrices * recipe.output.export.len() as u64;
    if free < needed {
        bail!(
            "{} has {} free, checkpoints and exports need {}: free some space, lower output.save_total_limit, or choose \
             another output.dir",
            existing.display(),
            show::bytes(free),
            show::bytes(needed)
        );
    }
    Ok(())
}

/// A run between its first and its last step.
struct Run<'a> {
    recipe: &'a Recipe,
    session: &'a Session,
    initial: &'a Adapter,
    identity: Identity,
    gpu: &'a Gpu,
    trainer: &'a Trainer<'a>,
    record: Record,
    console: Console,
    stop: Stop,
    /// Seconds since 1970.
    started: f64,
    /// Steps that were taken or left out.
    step: usize,
    best: Option<Best>,
}

/// The best evaluation so far.
struct Best {
    step: usize,
    pairs: BTreeMap<Slot, Pair>,
}

/// Why no further step is taken.
enum End {
    /// The last one is done.
    Last,
    /// The validation loss no longer falls.
    Early,
    /// Somebody asked.
    Asked,
}

impl Run<'_> {
    /// Takes up a checkpoint's state, and says how the run begins.
    fn begin(&mut self, checkpoint: Option<Checkpoint>, notices: &[String]) -> Result<()> {
        let dir = &self.recipe.output.dir;
        state::write(dir, Status::Running, &self.facts())?;
        self.console.json(|| {
            let mut object = self.facts();
            object["event"] = "start".into();
            object["output"] = json!(dir);
            object["steps"] = self.steps().into();
            object["resumed_at"] = self.step.into();
            object["notices"] = notices.into();
            object["recipe"] = serde_json::to_value(self.recipe).expect("tables of plain values");
            object
        });
        notices.iter().for_each(|notice| self.console.line("resume", notice));
        let Some(c) = checkpoint else { return Ok(()) };
        if self.recipe.eval.keep_best {
            self.best = c.best.map(|(step, pairs)| {
                let pairs = pairs.unwrap_or_else(|| c.adapter.pairs.clone());
                Best { step, pairs }
            });
        }
        let Checkpoint { adapter, first, second, updates, .. } = c;
        self.trainer.restore(&Snapshot { parameters: adapter.pairs, first, second, updates });
        Ok(())
    }

    /// Steps, evaluations and checkpoints to the end; what becomes of it.
    fn train(&mut self) -> Result<ExitCode> {
        let end = match self.steps_to_the_end() {
            Ok(end) => end,
            Err(error) => return Err(self.failed(error)),
        };
        self.console.finish_steps();
        match end {
            End::Asked => self.stopped(),
            End::Last | End::Early => self.finished(matches!(end, End::Early)),
        }
    }

    fn steps(&self) -> usize {
        self.session.steps.plans.len()
    }

    /// Each turn does what is due after the steps so far, then takes the next.
    fn steps_to_the_end(&mut self) -> Result<End> {
        self.console.start_steps(self.step);
        let patience = self.recipe.eval.early_stopping_patience;
        let save_steps = self.recipe.output.save_steps;
        loop {
            if self.evaluation_is_due() && !self.evaluate()? {
                return Ok(End::Asked);
            }
            let early = patience > 0 && self.record.history.stale >= patience;
            if early || self.step == self.steps() {
                self.save()?;
                return Ok(if early { End::Early } else { End::Last });
            }
            if self.stop.asked() {
                return Ok(End::Asked);
            }
            if save_steps > 0 && self.step > 0 && self.step.is_multiple_of(save_steps) {
                self.save()?;
            }
            self.take_step()?;
        }
    }

    fn evaluation_is_due(&self) -> bool {
        let every = self.recipe.eval.steps;
        let due =
            self.step == 0 || self.step == self.steps() || (every > 0 && self.step.is_multiple_of(every));
        due && self.record.history.evaluated != Some(self.step)
    }

    fn take_step(&mut self) -> Result<()> {
        let (index, number) = (self.step, self.step + 1);
        let step = self.session.steps.step(&self.session.data.train, index);
        let learning_rate = self.session.steps.schedule.learning_rate(index);
        let tokens: usize = step.micro_batches.iter().map(MicroBatch::len).sum();
        let optimizer = run::optimizer(self.recipe);
        let started = Instant::now();
        let result = block_on(self.trainer.step(&step, number as u64, &optimizer, learning_rate));
        let seconds = started.elapsed().as_secs_f64();
        let mut notices = Vec::new();
        let measured = match result {
            Ok(report) => Step::taken(number, &report, learning_rate, tokens),
            Err(TrainError::NotFinite { loss, grad_norm, rows, loss_tokens, .. }) if self.may_skip() => {
                let allowed = self.recipe.train.max_skipped_steps;
                let skipped = self.record.history.skipped + 1;
                let notice = format!(
                    "left out: loss {loss}, gradient norm {grad_norm}, {rows} of {loss_tokens} tokens that carry loss \
                     overflowed; {skipped} of at most {allowed} such steps"
                );
                notices.push(Notice { step: number, notice });
                Step::skipped(number, loss, grad_norm, learning_rate, tokens)
            }
            Err(error) => return Err(error.into()),
        };
        self.step = number;
        let timing =
            Timing { step: number, time: now(), seconds, tokens_per_second: tokens as f64 / seconds };
        let signs = self.record.step(measured.clone(), timing)?;
        self.console.step(&measured, &timing, &self.record.history);
        for notice in &notices {
            self.record.push(Event::Notice(notice.clone()))?;
        }
        notices.iter().chain(&signs).for_each(|notice| self.console.notice(notice));
        Ok(())
    }

    fn may_skip(&self) -> bool {
        self.record.history.skipped < self.recipe.train.max_skipped_steps
    }

    /// Validation and replies; false where somebody asked to stop meanwhile, and nothing was measured.
    fn evaluate(&mut self) -> Result<bool> {
        let batches = self.session.validation.iter().map(|file| file.batches.len()).sum();
        let bar = self.console.phase("validation", batches);
        let (mut total, mut sources) = (train::Evaluation::default(), Vec::new());
        for file in &self.session.validation {
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

    fn replies(&self) -> Result<Option<Vec<Reply>>> {
        let bar = self.console.phase("replies", self.session.prompts.len());
        let mut replies = Vec::new();
        for (text, prompt) in &self.session.prompts {
            if self.stop.asked() {
                bar.finish_and_clear();
                return Ok(None);
            }
            let longest = self.recipe.eval.max_new_tokens;
            let reply = block_on(generate::greedy(self.trainer, &self.session.frozen, prompt, longest))?;
            replies.push(Reply { prompt: text.clone(), reply });
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(Some(replies))
    }

    /// Writes a checkpoint of the state after the last step, and the report so far.
    fn save(&mut self) -> Result<()> {
        let Snapshot { parameters, first, second, updates } = block_on(self.trainer.snapshot())?;
        let (metrics, timing) = self.record.lines();
        let best =
            self.best.as_ref().map(|best| (best.step, (best.step != self.step).then(|| best.pairs.clone())));
        let checkpoint = Checkpoint {
            step: self.step,
            steps: self.steps(),
            recipe: self.recipe.clone(),
            identity: self.identity.clone(),
            adapter: Adapter { pairs: parameters, ..self.initial.clone() },
            first,
            second,
            updates,
            best,
            metrics,
            timing,
        };
        let dir = &self.recipe.output.dir;
        let path = checkpoint.write(dir)?;
        checkpoint::prune(dir, self.recipe.output.save_total_limit)?;
        self.console.saved(self.step, &path);
        self.write_report(Status::Running, None)?;
        Ok(())
    }

    /// Somebody asked: what was done is saved, and how to go on is said.
    fn stopped(&mut self) -> Result<ExitCode> {
        let (step, steps, dir) = (self.step, self.steps(), self.recipe.output.dir.display());
        let how = if step > 0 {
            self.save()?;
            format!("after step {step} of {steps}; the same command goes on from there")
        } else {
            "before the first step; nothing was to be saved".to_string()
        };
        self.end(Status::Stopped, None)?;
        self.console.json(|| json!({ "event": "stopped", "step": step, "output": self.recipe.output.dir }));
        self.console.line("stopped", &format!("{how} ({dir})"));
        Ok(ExitCode::from(stop::STATUS))
    }

    /// An error: the state before it is saved where it is sound, and how to go on once the cause is gone is said.
    fn failed(&mut self, error: anyhow::Error) -> anyhow::Error {
        self.console.finish_steps();
        if self.step > 0 && matches!(error.downcast_ref(), Some(TrainError::NotFinite { .. })) {
            // Where even that fails, an earlier checkpoint is named.
            let _ = self.save();
        }
        let _ = self.end(Status::Stopped, None);
        match checkpoint::list(&self.recipe.output.dir).first() {
            Some((step, _)) => {
                let message = super::message(&error);
                anyhow!(
                    "{message}. The run is saved as it was after step {step}; the same command goes on from there"
                )
            }
            None => error,
        }
    }

    /// Writes the adapter and everything about it.
    fn finished(&mut self, early: bool) -> Result<ExitCode> {
        let best = self.best.take().filter(|best| best.step != self.step);
        let kept = best.as_ref().map_or(self.step, |best| best.step);
        let pairs = match best {
            Some(best) => best.pairs,
            None => block_on(self.trainer.adapter())?,
        };
        if pairs == self.initial.pairs {
            self.end(Status::Finished, None)?;
            bail!(
                "training changed nothing: the adapter equals its start. Check train.learning_rate, and that the run has \
                 more than its warm-up steps"
            );
        }
        let loss = |step: usize| Some(self.record.history.evaluation(step)?.scores?.eval_loss);
        if let (Some(before), Some(after)) = (loss(0), loss(kept))
            && after >= before
        {
            let notice =
                format!("the validation loss did not fall: {before:.4} before training, {after:.4} after it");
            let notice = Notice { step: self.step, notice };
            self.console.notice(&notice);
            self.record.push(Event::Notice(notice))?;
        }
        self.export(&Adapter { pairs, ..self.initial.clone() })?;
        self.end(Status::Finished, Some(kept))?;
        self.say_finished(early, kept);
        Ok(ExitCode::SUCCESS)
    }

    fn export(&self, adapter: &Adapter) -> Result<()> {
        let recipe = self.recipe;
        let base_model = recipe.output.base_model_name.as_deref().unwrap_or(&recipe.model.base);
        let options = export::Options { base_model, dropout: recipe.lora.dropout };
        let config = self.session.frozen.base.config();
        let write = |format: &Format| export::write(&recipe.output.dir, *format, adapter, config, &options);
        // All are tried before the first failure is told: one format may not cost the whole run.
        let results: Vec<_> = recipe.output.export.iter().map(write).collect();
        for result in results {
            result.context("the last checkpoint holds the adapter; the same command tries again")?;
        }
        Ok(())
    }

    fn say_finished(&self, early: bool, kept: usize) {
        let history = &self.record.history;
        let (seconds, speed) = history.speed();
        let scores = |step: usize| history.evaluation(step).and_then(|e| e.scores);
        let (before, after) = (scores(0), scores(kept));
        self.console.json(|| {
            json!({
                "event": "finished", "step": self.step, "adapter_of_step": kept, "stopped_early": early,
                "seconds": seconds, "tokens_per_second": speed, "output": self.recipe.output.dir,
                "eval_loss_before": before.map(|s| s.eval_loss), "eval_loss": after.map(|s| s.eval_loss),
            })
        });
        if !self.console.words() {
            return;
        }
        show::text("");
        let steps = show::count(self.step, "step");
        show::line("trained", format_args!("{steps} in {seconds:.1} s, {speed:.0} tokens/s"));
        if early {
            let patience = show::count(self.recipe.eval.early_stopping_patience, "evaluation");
            show::line(
                "early",
                format_args!(
                    "{patience} without a lower validation loss: no further step of {}",
                    self.steps()
                ),
            );
        }
        if kept != self.step {
            show::line("best", format_args!("after step {kept}: this adapter is written, not the last one"));
        }
        if let (Some(b), Some(a)) = (before, after) {
            let loss = format!("loss {:.4} → {:.4}", b.eval_loss, a.eval_loss);
            let perplexity = format!("perplexity {:.2} → {:.2}", b.eval_perplexity, a.eval_perplexity);
            let accuracy =
                format!("accuracy {:.1} % → {:.1} %", 100.0 * b.eval_accuracy, 100.0 * a.eval_accuracy);
            show::line("validation", format_args!("{loss}, {perplexity}, {accuracy}"));
        }
        let replies = |step: usize| history.evaluation(step).map_or(&[][..], |e| &e.replies);
        for (before, after) in replies(0).iter().zip(replies(kept)) {
            show::text(format_args!(
                "\n  {}\n    before  {}\n    after   {}",
                before.prompt, before.reply, after.reply
            ));
        }
        show::text("");
        show::line("written", self.recipe.output.dir.display());
        show::line("report", self.recipe.output.dir.join(report::FILE).display());
    }

    /// The last words in the folder: status and report.
    fn end(&self, status: Status, kept: Option<usize>) -> Result<()> {
        let dir = &self.recipe.output.dir;
        self.write_report(status, kept)?;
        let mut facts = self.facts();
        facts["ended"] = now().into();
        facts["step"] = self.step.into();
        facts["adapter_of_step"] = json!(kept);
        state::write(dir, status, &facts)?;
        Ok(())
    }

    /// What is known of the run before its first step.
    fn facts(&self) -> Value {
        json!({
            "device": self.gpu.description(), "base": self.session.frozen.base.name(), "digests": self.identity,
            "started": self.started, "steps": self.steps(), "parameters": self.initial.parameters(),
        })
    }

    fn write_report(&self, status: Status, kept: Option<usize>) -> Result<()> {
        let adapter = Format::Peft.place(&self.recipe.output.dir).join("adapter_model.safetensors");
        let written = kept.and_then(|_| std::fs::read(adapter).ok());
        let report = Report {
            recipe: self.recipe,
            history: &self.record.history,
            status: status.name(),
            steps: self.steps(),
            kept,
            device: &self.gpu.description(),
            base: self.session.frozen.base.name(),
            identity: &self.identity,
            adapter_digest: written.map(|bytes| digest::bytes(&bytes)),
            parameters: self.initial.parameters(),
            planned_bytes: self.trainer.plan().total(),
            train_samples: self.session.data.train.len(),
            validation_samples: self.session.data.validation.len(),
        };
        let path = self.recipe.output.dir.join(report::FILE);
        files::write_atomic(&path, report.html().as_bytes())?;
        Ok(())
    }
}
