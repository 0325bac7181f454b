//! Finding the checkpoint that a run resumes from.

use std::path::PathBuf;

use anyhow::{Result, bail};
use rullama_train::recipe::Recipe;
use rullama_train::run::checkpoint::{self, Checkpoint, CheckpointError};
use rullama_train::run::{self, Identity};

use super::super::setup::session::Session;
use super::run_file;

/// The state from which a run starts.
#[derive(Default)]
pub struct Start {
    /// The checkpoint to resume from.
    pub checkpoint: Option<Checkpoint>,
    /// Checkpoints that are damaged or belong to earlier runs. They are removed when the run starts.
    pub obsolete: Vec<PathBuf>,
    /// Messages for the user.
    pub notices: Vec<String>,
}

/// Searches the output folder. A finished run is replaced. A stopped run is resumed; it is an error if its settings differ.
pub fn find(recipe: &Recipe, session: &Session, identity: &Identity, fresh: bool) -> Result<Start> {
    let dir = &recipe.output.dir;
    let found = checkpoint::list(dir);
    let paths = || found.iter().map(|(_, path)| path.clone()).collect::<Vec<_>>();
    if fresh || found.is_empty() || run_file::is_finished(dir) {
        return Ok(Start { obsolete: paths(), ..Start::default() });
    }
    let config = session.frozen.base.config();
    let mut start = Start::default();
    let mut damage = String::new();
    for (step, path) in &found {
        let slots = |recipe: &Recipe| run::slots(recipe, config).map_err(|e| e.to_string());
        match Checkpoint::read(path, config, slots) {
            Ok(checkpoint) => {
                check_same_run(&checkpoint, recipe, session, identity)?;
                if !damage.is_empty() {
                    start
                        .notices
                        .push(format!("{damage}; resuming from {}, which is intact", path.display()));
                }
                start.notices.push(format!("resuming after step {step} of {}", checkpoint.steps));
                start.checkpoint = Some(checkpoint);
                return Ok(start);
            }
            Err(error @ CheckpointError::Damaged { .. }) => {
                damage = if damage.is_empty() { error.to_string() } else { format!("{damage}; {error}") };
                start.obsolete.push(path.clone());
            }
            Err(error) => return Err(error.into()),
        }
    }
    bail!("{damage}; no intact checkpoint is left in {}. Start over with --fresh", dir.display())
}

/// Fails if recipe, base or samples differ from those of the checkpoint.
fn check_same_run(
    checkpoint: &Checkpoint,
    recipe: &Recipe,
    session: &Session,
    identity: &Identity,
) -> Result<()> {
    let changes = checkpoint.changes(recipe, identity, session.prepared.steps.plans.len());
    if changes.is_empty() {
        return Ok(());
    }
    bail!(
        "{} holds a run that was stopped after step {} of {} and differs from this one: {}. Undo that to resume, choose another \
         output.dir, or start over with --fresh",
        recipe.output.dir.display(),
        checkpoint.step,
        checkpoint.steps,
        changes.join("; ")
    )
}
