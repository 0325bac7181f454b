//! The main job: a recipe becomes an adapter.

mod console;
mod end;
mod evaluate;
mod lock;
mod record;
mod resume;
mod state;
mod stop;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use pollster::block_on;
use rullama_train::adapter::lora::Adapter;
use rullama_train::files;
use rullama_train::recipe::Recipe;
use rullama_train::run::checkpoint;
use rullama_train::run::digest::Identity;
use rullama_train::run::metrics::{Event, History, now};
use rullama_train::run::{Course, Recorded};
use rullama_train::train::health::Watch;
use serde_json::json;

use super::output as show;
use super::setup::session::Session;
use super::setup::summary;
use super::setup::timings::Timings;
use console::{Console, Voice};
use record::Record;
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
    let mut timings = Timings::start();
    let (session, gpu) = Session::start_on_device(recipe);
    let (session, loaded) = session?;
    let initial = &loaded.adapter;
    let identity = Identity::of(&session.frozen, &session.prepared.data);
    let start = resume::find(recipe, &session, &identity, args.fresh)?;
    check_space(recipe, initial)?;
    let gpu = gpu?;
    timings.record("base, samples and device");
    if args.voice() == Voice::Words {
        summary::start(recipe, &session, &loaded, &gpu);
    }

    let steps = session.prepared.steps.plans.len();
    let loading = Console::new(args.voice(), steps, 0);
    let bar = loading.phase("loading the base", 0);
    let model = session.model(recipe, &gpu, initial)?;
    let trainer = session.trainer(recipe, &gpu, &model, initial)?;
    bar.finish_and_clear();
    timings.record("weights");
    if args.voice() == Voice::Words {
        show::plan(trainer.plan(), false);
    }
    let bar = loading.phase("trying the longest batch", 0);
    let tried = session.dry_pass(recipe, &trainer, &mut timings)?;
    bar.finish_and_clear();
    loading.line("dry run", &tried);
    gpu.keep_pipelines();
    if let Some(cost) = session.offload(&gpu, &model, trainer.plan())? {
        loading.line("offload", &cost);
    }
    if let Some(load) = session.experts(&trainer)? {
        loading.line("experts", &load);
    }

    let memory = gpu.allocated_bytes().unwrap_or(trainer.plan().total());
    let mut course = Course {
        recipe,
        gpu: &gpu,
        frozen: &session.frozen,
        model: &model,
        prepared: &session.prepared,
        identity: &identity,
        initial,
        trainer,
        history: History::default(),
        watch: Watch::default(),
        step: 0,
        best: None,
    };
    if let Some(checkpoint) = start.checkpoint {
        let unreadable = |e| anyhow!("the checkpoint's {e}; start anew with --fresh");
        course.resume(checkpoint).map_err(unreadable)?;
    }

    // Only now: a run that cannot start leaves an earlier one's files as they are.
    let _lock = lock::Lock::take(dir)?;
    start.obsolete.iter().try_for_each(|path| files::remove_folder(path))?;
    files::remove_unfinished(dir)?;
    let resolved = recipe.pinned(&session.frozen.fingerprint).to_resolved_toml();
    files::write_atomic(&dir.join("recipe.resolved.toml"), resolved.as_bytes())?;
    let mut run = Run {
        session: &session,
        record: Record::begin(dir, &course.history)?,
        course,
        console: Console::new(args.voice(), steps, memory),
        stop: Stop::listen()?,
        started: now(),
    };
    run.begin(&start.notices, &loaded.notices, &timings)?;
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

/// A run between its first and its last step: what is done, written down and said.
struct Run<'a> {
    course: Course<'a>,
    session: &'a Session,
    record: Record,
    console: Console,
    stop: Stop,
    /// Seconds since 1970.
    started: f64,
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
    /// Says how the run begins, `notices` where it goes on. `loaded` is what is to be said of `lora.init_from`.
    fn begin(&mut self, notices: &[String], loaded: &[String], timings: &Timings) -> Result<()> {
        let recipe = self.course.recipe;
        state::write(&recipe.output.dir, Status::Running, &self.facts())?;
        self.console.json(|| {
            let mut object = self.facts();
            object["event"] = "start".into();
            object["output"] = json!(recipe.output.dir);
            object["steps"] = self.course.steps().into();
            object["resumed_at"] = self.course.step.into();
            object["start_seconds"] = timings.json();
            object["offloaded_layers"] = json!(self.course.model.offloaded());
            let of_data = self.course.prepared.data.notices.iter().map(ToString::to_string);
            object["notices"] =
                loaded.iter().cloned().chain(of_data).chain(notices.iter().cloned()).collect();
            object["recipe"] = serde_json::to_value(recipe).expect("tables of plain values");
            object
        });
        self.console.line("startup", &timings.to_string());
        notices.iter().for_each(|notice| self.console.line("resume", notice));
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

    /// Each turn does what is due after the steps so far, then takes the next.
    fn steps_to_the_end(&mut self) -> Result<End> {
        self.console.start_steps(self.course.step);
        loop {
            if self.course.evaluation_is_due() && !self.evaluate()? {
                return Ok(End::Asked);
            }
            let early = self.course.stops_early();
            if early || self.course.step == self.course.steps() {
                self.save()?;
                return Ok(if early { End::Early } else { End::Last });
            }
            if self.stop.asked() {
                return Ok(End::Asked);
            }
            if self.course.checkpoint_is_due() {
                self.save()?;
            }
            self.take_step()?;
        }
    }

    fn take_step(&mut self) -> Result<()> {
        let Recorded { measured, timing, notices } = block_on(self.course.take_step())?;
        self.record.step(&measured, &timing)?;
        self.console.step(&measured, &timing, &self.course.history);
        for notice in &notices {
            self.record.push(&Event::Notice(notice.clone()))?;
            self.console.notice(notice);
        }
        Ok(())
    }

    /// Writes a checkpoint of the state after the last step, and the report so far.
    fn save(&mut self) -> Result<()> {
        let output = &self.course.recipe.output;
        let checkpoint = block_on(self.course.checkpoint())?;
        let path = checkpoint.write(&output.dir, &self.course.frozen.base)?;
        checkpoint::prune(&output.dir, output.save_total_limit)?;
        self.console.saved(checkpoint.step, &path);
        self.write_report(Status::Running, None)?;
        Ok(())
    }
}
