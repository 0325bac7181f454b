//! Training: a recipe becomes an adapter.

mod console;
mod lock;
mod log_files;
mod resume;
mod run_file;
mod stop;
mod summary;
mod terminal;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use pollster::block_on;
use rullama_train::files;
use rullama_train::recipe::Recipe;
use rullama_train::report;
use rullama_train::run::{Finished, Outcome, Run, checkpoint};
use rullama_train::train::TrainError;

use super::setup::session::Session;
use super::setup::timings::Timings;
use super::{message, output};
use console::{Console, OutputMode};
use terminal::Terminal;

/// Options of training.
#[derive(Args)]
pub struct TrainArgs {
    /// Start over, even if a stopped run could be resumed.
    #[arg(long, requires = "recipe")]
    fresh: bool,
    /// Print errors only.
    #[arg(long, requires = "recipe")]
    quiet: bool,
    /// Print one JSON object per line for each event of the run.
    #[arg(long, requires = "recipe", conflicts_with = "quiet")]
    json: bool,
}

impl TrainArgs {
    fn output_mode(&self) -> OutputMode {
        match (self.json, self.quiet) {
            (true, _) => OutputMode::Json,
            (_, true) => OutputMode::Quiet,
            _ => OutputMode::Text,
        }
    }
}

/// Trains with evaluations and checkpoints, and writes the output folder. Resumes a stopped run of the same recipe.
pub fn run(recipe: &Recipe, args: &TrainArgs) -> Result<ExitCode> {
    let dir = &recipe.output.dir;
    lock::check(dir)?;
    let mut timings = Timings::start();
    let (session, gpu) = Session::start_on_device(recipe);
    let (session, loaded) = session?;
    let initial = &loaded.adapter;
    let identity = session.prepared.identity(&session.frozen);
    let start = resume::find(recipe, &session, &identity, args.fresh)?;
    terminal::check_space(dir, recipe.output.save_total_limit, recipe.output.export.len(), initial)?;
    let gpu = gpu?;
    timings.record("base, samples and device");
    let mode = args.output_mode();
    if mode == OutputMode::Text {
        super::setup::summary::start(recipe, &session, &loaded, &gpu);
    }

    let steps = session.prepared.steps.plans.len();
    let loading = Console::new(mode, steps, 0);
    let bar = loading.bar("loading the base", 0);
    let model = session.model(recipe, &gpu, initial)?;
    let trainer = session.trainer(recipe, &gpu, &model, initial)?;
    bar.finish_and_clear();
    timings.record("weights");
    if mode == OutputMode::Text {
        output::plan(trainer.plan(), false);
    }
    let bar = loading.bar("trying the longest batch", 0);
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
    let mut run = Run::new(recipe, &session.frozen, &session.prepared, &identity, initial, trainer);
    if let Some(checkpoint) = start.checkpoint {
        let unreadable = |e| anyhow!("the checkpoint's {e}; start over with --fresh");
        run.resume(checkpoint).map_err(unreadable)?;
    }

    // Only now: a run that cannot start leaves the files of an earlier one alone.
    let _lock = lock::Lock::take(dir)?;
    start.obsolete.iter().try_for_each(|path| files::remove_folder(path))?;
    files::remove_unfinished(dir)?;
    let mut terminal = Terminal::new(&session, &run, Console::new(mode, steps, memory))?;
    terminal.begin(&run, &start.notices, &loaded.notices, &timings)?;
    let outcome = block_on(run.drive(&mut terminal)).map_err(|error| with_how_to_resume(error, dir))?;
    end(outcome, dir, mode)
}

/// Adds to an error that the run can be resumed, if it can.
fn with_how_to_resume(error: anyhow::Error, dir: &Path) -> anyhow::Error {
    match checkpoint::list(dir).first() {
        Some((step, _)) => {
            let message = message(&error);
            anyhow!("{message}. The run is saved after step {step}; run the same command to resume")
        }
        None => error,
    }
}

/// The exit code for an outcome; refusals and failed exports are errors.
fn end(outcome: Outcome, dir: &Path, mode: OutputMode) -> Result<ExitCode> {
    match outcome {
        Outcome::Interrupted => Ok(ExitCode::from(stop::STATUS)),
        Outcome::Unmoved => Err(TrainError::Unmoved.into()),
        Outcome::Refused { reason, kept, .. } => {
            bail!("{reason}; the trained adapter is kept in {}", kept.display())
        }
        Outcome::Finished(Finished { written: Some(written), .. }) if mode == OutputMode::Text => {
            output::written(written)?;
            output::line("written", dir.display());
            output::line("report", dir.join(report::FILE).display());
            Ok(ExitCode::SUCCESS)
        }
        Outcome::Finished(finished) => {
            let formats = finished.written.into_iter().flat_map(|written| written.formats);
            match formats.into_iter().find_map(|(_, result)| result.err()) {
                Some(error) => Err(error.into()),
                None => Ok(ExitCode::SUCCESS),
            }
        }
    }
}
