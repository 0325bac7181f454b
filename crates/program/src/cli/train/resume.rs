//! Content of the output folder, and the state from which a run there starts.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use rullama_train::adapter::Format;
use rullama_train::files;
use rullama_train::recipe::Recipe;
use rullama_train::run::checkpoint::{self, Checkpoint, CheckpointError, Differences};
use rullama_train::run::{self, Identity, OpenBase};

use super::super::setup::session::Session;
use super::{TrainArgs, run_file};

/// The state of the output folder.
pub enum Found {
    /// A run can start or resume.
    Start(Box<Start>),
    /// The run of this recipe is over.
    Finished(Finished),
}

/// The state from which a run starts.
#[derive(Default)]
pub struct Start {
    /// The checkpoint to resume from.
    pub checkpoint: Option<Checkpoint>,
    /// Changes of settings with which the run continues.
    pub changes: Vec<String>,
    /// Checkpoints that are damaged or belong to earlier runs. They are removed when the run starts.
    pub obsolete: Vec<PathBuf>,
    /// Whether the run replaces an earlier one, whose results are removed when it starts.
    pub replaces: bool,
    /// Messages for the user.
    pub notices: Vec<String>,
}

/// A run that is over.
pub struct Finished {
    /// Its steps.
    pub step: usize,
    /// The steps that were planned.
    pub steps: usize,
    /// Whether the final check refused its adapter.
    pub refused: bool,
}

/// Searches the output folder. A stopped run is resumed, and a finished one is left alone, if the settings are those of this
/// run; it is an error if they differ and `--continue-with-changes` does not allow it.
pub fn find(recipe: &Recipe, session: &Session, identity: &Identity, args: &TrainArgs) -> Result<Found> {
    let dir = &recipe.output.dir;
    let found = checkpoint::list(dir);
    let paths = || found.iter().map(|(_, path)| path.clone()).collect::<Vec<_>>();
    let finished = run_file::is_finished(dir);
    let over = run_file::read(dir)["status"] == "finished";
    if args.fresh || (over && !finished) {
        let replaces = run_file::exists(dir);
        return Ok(Found::Start(Start { obsolete: paths(), replaces, ..Start::default() }.into()));
    }
    if found.is_empty() {
        check_empty(dir, finished, args)?;
        return Ok(Found::Start(Box::default()));
    }
    let (step, path, mut start) = newest(dir, &found, session)?;
    let checkpoint = start.checkpoint.take().ok_or_else(|| anyhow!("no checkpoint"))?;
    let differences = checkpoint.differences(recipe, identity, session.prepared.steps.plans.len());
    let early = finished && checkpoint.step < checkpoint.steps;
    if finished && differences.is_empty() && !(early && args.continue_with_changes) {
        if args.continue_with_changes {
            bail!(
                "{} holds a finished run, and nothing has changed; raise train.epochs or train.max_steps to continue it",
                dir.display()
            );
        }
        let refused = run_file::read(dir)["result"] == "refused";
        return Ok(Found::Finished(Finished { step: checkpoint.step, steps: checkpoint.steps, refused }));
    }
    check_same_run(&checkpoint, &differences, recipe, session, (finished, args))?;
    if let Some(damage) = start.notices.pop() {
        start.notices.push(format!("{damage}; resuming from {}, which is intact", path.display()));
    }
    let of = session.prepared.steps.plans.len();
    start.notices.push(format!("resuming after step {step} of {of}"));
    if !differences.is_empty() {
        start.notices.push(format!("continuing with changes: {}", differences.all()));
    }
    start.changes = differences.continuable;
    start.checkpoint = Some(checkpoint);
    Ok(Found::Start(start.into()))
}

/// The shares of the run in the folder `dir`, which it keeps on any number of processes; `None` if there is none to resume.
pub fn shares(dir: &Path, args: &TrainArgs) -> Option<usize> {
    let state = |(_, path): (usize, PathBuf)| {
        let text = files::read(&path.join(checkpoint::STATE)).ok()?;
        let state: serde_json::Value = serde_json::from_slice(&text).ok()?;
        let recipe = state["recipe"]["train"].as_object()?;
        // Before there were shares, a step was one.
        Some(recipe.get("shares").map_or(1, |shares| shares.as_u64().unwrap_or(1) as usize))
    };
    if args.fresh { None } else { checkpoint::list(dir).into_iter().find_map(state) }
}

/// The newest intact checkpoint with its step and path. A notice describes the damage of newer ones, which are obsolete.
fn newest(dir: &Path, found: &[(usize, PathBuf)], session: &Session) -> Result<(usize, PathBuf, Start)> {
    let config = session.frozen.base.config();
    let (mut start, mut damage) = (Start::default(), Vec::new());
    for (step, path) in found {
        let slots = |recipe: &Recipe| run::slots(recipe, config).map_err(|e| e.to_string());
        match Checkpoint::read(path, config, slots) {
            Ok(checkpoint) => {
                start.checkpoint = Some(checkpoint);
                start.notices.extend((!damage.is_empty()).then(|| damage.join("; ")));
                return Ok((*step, path.clone(), start));
            }
            Err(error @ CheckpointError::Damaged { .. }) => {
                damage.push(error.to_string());
                start.obsolete.push(path.clone());
            }
            Err(error) => return Err(error.into()),
        }
    }
    bail!("{}; no intact checkpoint is left in {}. Start over with --fresh", damage.join("; "), dir.display())
}

/// Says that a resumed run was on another device so far, whose bytes differ: CUDA's is another than Vulkan's.
pub fn other_device(start: &Start, dir: &Path, device: &str) -> Option<String> {
    start.checkpoint.as_ref()?;
    let run = run_file::read(dir);
    let was = run["device"].as_str().filter(|was| *was != device)?;
    Some(format!(
        "the run was on {was} and continues on {device}: its last bits will differ from those of a run on one device"
    ))
}

/// Fails if a folder without checkpoints holds results that the run would replace.
fn check_empty(dir: &Path, finished: bool, args: &TrainArgs) -> Result<()> {
    let place = dir.display();
    if finished {
        bail!(
            "{place} holds a finished run without its checkpoints, so it cannot be continued; choose another output.dir, or \
             replace it with --fresh"
        );
    }
    let foreign =
        ["adapter_model.safetensors", "adapters.safetensors"].iter().find(|name| dir.join(name).exists());
    if let (Some(name), false) = (foreign, run_file::exists(dir)) {
        bail!(
            "{place} holds an adapter that no run has written there ({name}); choose another output.dir, or replace it with \
             --fresh"
        );
    }
    if args.continue_with_changes {
        bail!("{place} holds no run to continue; leave out --continue-with-changes");
    }
    Ok(())
}

/// Fails if settings differ that may not, or that may only with `--continue-with-changes`.
fn check_same_run(
    checkpoint: &Checkpoint,
    differences: &Differences,
    recipe: &Recipe,
    session: &Session,
    (finished, args): (bool, &TrainArgs),
) -> Result<()> {
    let steps = session.prepared.steps.plans.len();
    // A run on another base is worth keeping, and what else differs may follow from the base.
    if differences.fixed.iter().any(|difference| difference.starts_with("the base ")) {
        bail!(
            "{} holds a sound run on another base, {:?}: {}. Set model.base to that base to go on with it, or choose another output.dir",
            recipe.output.dir.display(),
            checkpoint.recipe.model.base,
            differences.all()
        );
    }
    if steps < checkpoint.step {
        bail!(
            "{} holds a run that has taken {} steps, more than the {steps} of this one: {}. Raise train.epochs or \
             train.max_steps, choose another output.dir, or start over with --fresh",
            recipe.output.dir.display(),
            checkpoint.step,
            differences.all()
        );
    }
    let may_continue = differences.fixed.is_empty();
    if differences.is_empty() || (may_continue && args.continue_with_changes) {
        return Ok(());
    }
    let held = match finished {
        true => "a finished run".into(),
        false => format!("a run that was stopped after step {} of {}", checkpoint.step, checkpoint.steps),
    };
    let next = match (may_continue, finished) {
        (true, true) => "Continue it with --continue-with-changes, ",
        (true, false) => "Undo that to resume, continue with --continue-with-changes, ",
        (false, true) => "Start from its adapter with lora.init_from and another output.dir, ",
        (false, false) => "Undo that to resume, ",
    };
    bail!(
        "{} holds {held} and differs from this one: {}. {next}choose another output.dir, or {} with --fresh",
        recipe.output.dir.display(),
        differences.all(),
        if finished { "replace it" } else { "start over" }
    )
}

/// Fails if any byte of the base differs from the run's. The fingerprint alone sees a sample of them.
pub fn check_contents(checkpoint: &Checkpoint, identity: &Identity, base: &OpenBase) -> Result<()> {
    match identity.changes_since(&checkpoint.identity)[..] {
        [] => Ok(()),
        [ref change, ..] => bail!(
            "{} has changed since the run was stopped: {change}. Restore that file to resume, or choose another output.dir",
            base.base.name()
        ),
    }
}

/// Removes what an earlier run has left in the folder, but keeps its lock.
pub fn remove_results(dir: &Path) -> Result<(), files::Error> {
    for format in Format::ALL {
        let place = format.place(dir);
        match place == dir {
            true => ["adapter_model.safetensors", "adapter_config.json"]
                .iter()
                .try_for_each(|name| remove(&dir.join(name)))?,
            false if place.is_dir() => files::remove_folder(&place)?,
            false => remove(&place)?,
        }
    }
    files::remove_folder(&dir.join(run::REFUSED))?;
    [rullama_train::report::FILE, "run.json"].iter().try_for_each(|name| remove(&dir.join(name)))
}

fn remove(path: &Path) -> Result<(), files::Error> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(files::Error { path: path.into(), source })
        }
        _ => Ok(()),
    }
}
