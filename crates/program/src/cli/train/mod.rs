//! Training: a recipe becomes an adapter.

mod commands;
mod console;
mod hints;
mod hook;
pub mod lock;
mod log_files;
mod resume;
mod rollouts;
pub mod run_file;
mod stop;
mod summary;
mod teacher;
mod terminal;
mod worker_rank;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use pollster::block_on;
use rullama_train::adapter::Loaded;
use rullama_train::files;
use rullama_train::recipe::{Output, Recipe};
use rullama_train::report;
use rullama_train::run::{Finished, Identity, Outcome, Run, checkpoint};
use rullama_train::train::TrainError;
use rullama_train::train::ranks::Ranks;

use super::merge;
use super::ollama::Target;
use super::output::{self, next};
use super::ranks::{self, RankFacts};
use super::recipe_args::RecipeArgs;
use super::setup::device::Device;
use super::setup::session::Session;
use super::setup::timings::Timings;
use super::setup::tuning::Tuning;
pub use stop::{STATUS as STOPPED, signals};

use commands::Commands;
use console::{Console, OutputMode};
use hook::Hook;
use lock::Lock;
use resume::{Found, Start};
use stop::Stop;
use teacher::Asking;
use terminal::Terminal;
use worker_rank::Follower;

/// Options of training.
#[derive(Args)]
pub struct TrainArgs {
    /// Start over: the run in the output folder, finished or not, is replaced.
    #[arg(long, requires = "recipe")]
    fresh: bool,
    /// Continue a stopped or finished run although the recipe has changed: more epochs or steps, another learning rate,
    /// schedule, weight decay, clipping or dropout.
    #[arg(long, requires = "recipe", conflicts_with = "fresh")]
    continue_with_changes: bool,
    /// Print errors only.
    #[arg(long, requires = "recipe")]
    quiet: bool,
    /// Print one JSON object per line for each event of the run.
    #[arg(long, requires = "recipe", conflicts_with = "quiet")]
    json: bool,
    /// Take commands from stdin: stop, pause, resume, checkpoint. The end of stdin means stop. For `ui`.
    #[arg(long, requires = "json", hide = true)]
    commands: bool,
}

impl TrainArgs {
    /// Without options.
    pub fn plain() -> TrainArgs {
        TrainArgs { fresh: false, continue_with_changes: false, quiet: false, json: false, commands: false }
    }

    fn output_mode(&self) -> OutputMode {
        match (self.json, self.quiet) {
            (true, _) => OutputMode::Json,
            (_, true) => OutputMode::Quiet,
            _ => OutputMode::Text,
        }
    }
}

/// Trains with evaluations and checkpoints, and writes the output folder. Resumes a stopped run of the same recipe.
pub fn run(invocation: &RecipeArgs, args: &TrainArgs) -> Result<ExitCode> {
    ranks::run(|ranks| train(invocation, args, ranks))
}

/// Everything that a run needs before the weights are uploaded.
struct Opened {
    session: Session,
    loaded: Loaded,
    identity: Identity,
    start: Start,
    ollama: Option<Target>,
    gpu: Device,
}

/// Opens what the recipe names, and finds the state from which the run starts; `None` for a run that is over.
fn open(
    invocation: &RecipeArgs,
    recipe: &Recipe,
    args: &TrainArgs,
    ranks: &Rc<Ranks>,
) -> Result<Option<Opened>> {
    let (session, gpu) = Session::start_as(recipe, ranks);
    let (mut session, loaded) = session?;
    let recipe = &session.recipe;
    let identity = session.identity(&loaded.adapter);
    let find = || resume::find(recipe, &session, &identity, args);
    let found = ranks.is_first().then(find).transpose()?;
    let start = match worker_rank::share(ranks, found, &loaded.adapter)? {
        Some(Found::Start(start)) => *start,
        Some(Found::Finished(found)) => {
            hints::finished_before(invocation, recipe, &found, args.output_mode());
            return Ok(None);
        }
        None => return Ok(None),
    };
    let mut ollama = None;
    if ranks.is_first() {
        let Output { dir, save_total_limit, export, .. } = &recipe.output;
        ollama = ollama_target(recipe)?;
        terminal::check_space(dir, *save_total_limit, export.len(), &loaded.adapter)?;
    }
    let gpu = gpu?;
    let mut start = start;
    start.notices.extend(resume::other_device(&start, &recipe.output.dir, &gpu.description()));
    start.notices.extend(session.limit_memory(&gpu, &loaded.adapter)?);
    ranks::check(&RankFacts::own(&gpu, Some(&identity)).gather(ranks)?)?;
    Ok(Some(Opened { session, loaded, identity, start, ollama, gpu }))
}

/// [`run`] on one of several processes. The first one alone prints, and writes files.
fn train(invocation: &RecipeArgs, args: &TrainArgs, ranks: &Rc<Ranks>) -> Result<ExitCode> {
    let mut recipe = invocation.read()?;
    ranks::check_recipe(ranks, &recipe)?;
    let first = ranks.is_first();
    let mode = if first { args.output_mode() } else { OutputMode::Quiet };
    output::progress::silence(mode != OutputMode::Text);
    // Before the state of the folder is read, so that no other run changes it meanwhile.
    let lock = if first { Lock::existing(&recipe.output.dir)? } else { None };
    let seen = checkpoint::list(&recipe.output.dir);
    recipe.train.shares = Some(worker_rank::shares(ranks, &recipe, args)?);
    let recipe = &recipe;
    let dir = &recipe.output.dir;
    let mut timings = Timings::start();
    let Some(opened) = open(invocation, recipe, args, ranks)? else { return Ok(ExitCode::SUCCESS) };
    let Opened { session, loaded, mut identity, start, ollama, gpu } = opened;
    let recipe = &session.recipe;
    let initial = &loaded.adapter;
    timings.record("base, samples and device");
    if mode == OutputMode::Text {
        super::setup::summary::start(recipe, &session, &loaded, &gpu);
    }

    let steps = session.prepared.steps.plans.len();
    let loading = Console::new(mode, steps, 0);
    let commands = if first { args.commands.then(Commands::listen) } else { None };
    let (mut lock, mut asking) = (lock, None);
    if session.teacher.is_some() && first {
        // The teacher's file grows in the folder: no other run may use it.
        lock = Some(lock.map_or_else(|| lock_new(dir, &seen), Ok)?);
        asking = Some(Asking::listen(dir, commands.as_ref())?);
    }
    if !teacher::learn(recipe, &session, &gpu, ranks, asking.as_ref(), &loading)? {
        if first {
            summary::interrupted_teacher(recipe, &loading, invocation);
        }
        return Ok(ExitCode::from(stop::STATUS));
    }
    timings.record("teacher");
    let bar = loading.bar("loading the base", 0);
    let (model, contents) = session.model_and_contents(recipe, &gpu, initial)?;
    identity.contents = Some(contents);
    if let Some(checkpoint) = &start.checkpoint {
        resume::check_contents(checkpoint, &identity, &session.frozen)?;
    }
    let tuning = match &start.checkpoint {
        Some(checkpoint) => Tuning::Kept(checkpoint.choices.clone()),
        None => Tuning::wanted(recipe.device.tune),
    };
    let trainer = session.trainer_of(recipe, &gpu, &model, initial, ranks, &tuning)?;
    bar.finish_and_clear();
    timings.record("weights");
    if mode == OutputMode::Text {
        output::plan(trainer.plan(), false);
    }
    let bar = loading.bar("trying the longest batch", 0);
    let tried = session.dry_pass(&trainer, &mut timings)?;
    bar.finish_and_clear();
    loading.line("dry run", &tried.text);
    let speed = Some(tried.tokens_per_second);
    let own = RankFacts { tokens_per_second: speed, ..RankFacts::own(&gpu, Some(&identity)) };
    let all_ranks = ranks::introduce(ranks, own, mode == OutputMode::Text)?;
    gpu.keep_pipelines();
    let offload = session.offload(&gpu, &model, trainer.plan())?;
    offload.iter().for_each(|cost| loading.line("offload", cost));
    session.experts(&trainer)?.iter().for_each(|load| loading.line("experts", load));

    let memory = gpu.allocated_bytes().unwrap_or(trainer.plan().total());
    let mut run = Run::new(recipe, &session.frozen, &session.prepared, &identity, initial, trainer);
    let Start { checkpoint, changes, obsolete, replaces, notices } = start;
    if let Some(checkpoint) = checkpoint {
        let unreadable = |e| anyhow!("the checkpoint's {e}; start over with --fresh");
        run.resume(checkpoint).map_err(unreadable)?;
    }
    if !changes.is_empty() {
        run.change(changes);
    }

    if !first {
        let outcome = block_on(run.drive(&mut Follower::new()?))?;
        return Ok(ExitCode::from(if matches!(outcome, Outcome::Interrupted) { stop::STATUS } else { 0 }));
    }
    // Only now: a run that cannot start leaves the files of an earlier one alone.
    let _lock = lock.map_or_else(|| lock_new(dir, &seen), Ok)?;
    clear(dir, &obsolete, replaces)?;
    let hook = recipe.log.hook.as_ref().map(|command| Hook::start(command, dir)).transpose()?;
    let console = Console::new(mode, steps, memory)
        .with_hook(hook)
        .with_evaluations(recipe.eval.steps, session.prepared.replies() > 0);
    let stop = asking.map_or_else(|| Stop::listen(dir.clone()), |asking| Ok(asking.into_stop()))?;
    let mut terminal =
        Terminal::new(&session, &run, console, invocation, &all_ranks, stop)?.with_commands(commands);
    terminal.begin(&run, &notices, &loaded.notices, &timings)?;
    let outcome = block_on(run.drive(&mut terminal));
    terminal.end_hook();
    let outcome = outcome.map_err(|error| hints::with_next_step(error, invocation, recipe, &session))?;
    // The merged file is compared with base and adapter: the device needs the room.
    drop(model);
    let adapter = match (&ollama, &outcome) {
        (Some(_), Outcome::Finished(finished)) => Some(finished.adapter.clone()),
        _ => None,
    };
    let code = end(outcome, recipe, &session, mode)?;
    if let Some((target, adapter)) = ollama.zip(adapter) {
        let say = move |label: &str, text: String| mode.say(label, &text);
        merge::after_training(recipe, &session.frozen.base, &adapter, &target, &say)?;
    }
    Ok(code)
}

/// The model that Ollama gets after training.
fn ollama_target(recipe: &Recipe) -> Result<Option<Target>> {
    let target = recipe.output.ollama.as_deref().map(|name| {
        let advice = format!("remove it with `ollama rm {name}`");
        Target::check("output.ollama", name, Some(&advice))
    });
    target.transpose()
}

/// Removes what the run replaces in its folder, and what an interrupted one has left.
fn clear(dir: &Path, obsolete: &[PathBuf], replaces: bool) -> Result<()> {
    obsolete.iter().try_for_each(|path| files::remove_folder(path))?;
    if replaces {
        resume::remove_results(dir)?;
    }
    Ok(files::remove_unfinished(dir)?)
}

/// Locks a folder that no run had locked before. It may hold checkpoints that were copied there, such as those of a browser. Fails if
/// they are others than those `seen` at the start: another run has used the folder.
fn lock_new(dir: &Path, seen: &[(usize, PathBuf)]) -> Result<Lock> {
    let lock = Lock::create(dir)?;
    if checkpoint::list(dir) != seen {
        bail!("another run has written into {} meanwhile; run the command again", dir.display());
    }
    Ok(lock)
}

/// The exit code for an outcome; refusals and failed exports are errors.
fn end(outcome: Outcome, recipe: &Recipe, session: &Session, mode: OutputMode) -> Result<ExitCode> {
    let dir = &recipe.output.dir;
    match outcome {
        Outcome::Interrupted => Ok(ExitCode::from(stop::STATUS)),
        Outcome::Unmoved => Err(TrainError::Unmoved.into()),
        Outcome::Refused { reason, kept, .. } => {
            bail!("{reason}; the trained adapter is kept in {}", kept.display())
        }
        Outcome::Finished(Finished { written: Some(written), .. }) if mode == OutputMode::Text => {
            let exported: Vec<_> = written.formats.iter().map(|(format, _)| *format).collect();
            output::exported(written)?;
            output::line("written", dir.display());
            output::line("report", dir.join(report::FILE).display());
            next::after_training(&recipe.model.base, &session.frozen.base, dir, &exported);
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
