//! The main job: a recipe becomes an adapter.

mod console;
mod end;
mod evaluate;
mod lock;
mod record;
mod resume;
mod state;
mod stop;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use pollster::block_on;
use rullama_train::batch::MicroBatch;
use rullama_train::checkpoint::{self, Checkpoint};
use rullama_train::digest::Identity;
use rullama_train::files;
use rullama_train::gpu::Gpu;
use rullama_train::lora::{Adapter, Pair, Slot};
use rullama_train::metrics::{Event, Notice, Step, Timing};
use rullama_train::model::Model;
use rullama_train::recipe::Recipe;
use rullama_train::run;
use rullama_train::train::{Snapshot, TrainError, Trainer};
use serde_json::json;

use super::laps::Laps;
use super::pipelines::Pipelines;
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
    let mut laps = Laps::start();
    let (session, gpu) = Session::start_on_device(recipe);
    let (session, loaded) = session?;
    let initial = &loaded.adapter;
    let identity = Identity::of(&session.frozen, &session.prepared.data);
    let start = resume::find(recipe, &session, &identity, args.fresh)?;
    let resumed_at = start.checkpoint.as_ref().map_or(0, |c| c.step);
    check_space(recipe, initial)?;
    let gpu = gpu?;
    let mut pipelines = Pipelines::open(&gpu);
    laps.lap("base, samples and device");
    if args.voice() == Voice::Words {
        show::start(recipe, &session, &loaded, &gpu);
    }

    let steps = session.prepared.steps.plans.len();
    let loading = Console::new(args.voice(), steps, 0);
    let bar = loading.phase("loading the base", 0);
    let model = session.model(&gpu)?;
    let trainer = session.trainer(recipe, &gpu, &model, initial)?;
    bar.finish_and_clear();
    laps.lap("weights");
    if args.voice() == Voice::Words {
        show::plan(trainer.plan(), false);
    }
    let bar = loading.phase("trying the longest batch", 0);
    let tried = session.dry_pass(recipe, &trainer, &mut laps)?;
    bar.finish_and_clear();
    loading.line("tried", &tried);
    pipelines.keep(&gpu);
    if let Some(load) = session.experts(&trainer)? {
        loading.line("experts", &load);
    }

    // Only now: a run that cannot start leaves an earlier one's files as they are.
    let _lock = lock::Lock::take(dir)?;
    start.obsolete.iter().try_for_each(|path| files::remove_folder(path))?;
    files::remove_unfinished(dir)?;
    let resolved = recipe.pinned(&session.frozen.fingerprint).to_resolved_toml();
    files::write_atomic(&dir.join("recipe.resolved.toml"), resolved.as_bytes())?;
    let (metrics, timing) = start.checkpoint.as_ref().map_or(("", ""), |c| (&c.metrics, &c.timing));
    let record = Record::begin(dir, metrics, timing)?;
    let memory = gpu.allocated_bytes().unwrap_or(trainer.plan().total());
    let mut run = Run {
        recipe,
        session: &session,
        initial,
        identity,
        gpu: &gpu,
        model: &model,
        trainer,
        record,
        console: Console::new(args.voice(), steps, memory),
        stop: Stop::listen()?,
        started: now(),
        step: resumed_at,
        best: None,
    };
    run.begin(start.checkpoint, &start.notices, &loaded.notices, &laps)?;
    let status = run.train();
    pipelines.keep(&gpu);
    status
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
    model: &'a Model<'a>,
    trainer: Trainer<'a>,
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
    /// Takes up a checkpoint's state, and says how the run begins. `loaded` is what is to be said of `lora.init_from`.
    fn begin(
        &mut self,
        checkpoint: Option<Checkpoint>,
        notices: &[String],
        loaded: &[String],
        laps: &Laps,
    ) -> Result<()> {
        let dir = &self.recipe.output.dir;
        state::write(dir, Status::Running, &self.facts())?;
        self.console.json(|| {
            let mut object = self.facts();
            object["event"] = "start".into();
            object["output"] = json!(dir);
            object["steps"] = self.steps().into();
            object["resumed_at"] = self.step.into();
            object["start_seconds"] = laps.json();
            let of_data = self.session.prepared.data.notices.iter().map(ToString::to_string);
            object["notices"] =
                loaded.iter().cloned().chain(of_data).chain(notices.iter().cloned()).collect();
            object["recipe"] = serde_json::to_value(self.recipe).expect("tables of plain values");
            object
        });
        self.console.line("started", &laps.to_string());
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
        self.session.prepared.steps.plans.len()
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
        let step = self.session.prepared.steps.step(&self.session.prepared.data.train, index);
        let learning_rate = self.session.prepared.steps.schedule.learning_rate(index);
        let tokens: usize = step.micro_batches.iter().map(MicroBatch::len).sum();
        let optimizer = run::optimizer(self.recipe);
        if number < self.steps() {
            self.trainer
                .announce(&self.session.prepared.steps.step(&self.session.prepared.data.train, number));
        }
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
        let path = checkpoint.write(dir, &self.session.frozen.fingerprint)?;
        checkpoint::prune(dir, self.recipe.output.save_total_limit)?;
        self.console.saved(self.step, &path);
        self.write_report(Status::Running, None)?;
        Ok(())
    }
}
