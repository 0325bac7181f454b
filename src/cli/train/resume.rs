//! Whether a run goes on from a checkpoint, and from which.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use rullama_train::recipe::Recipe;
use rullama_train::run;
use rullama_train::run::checkpoint::{self, Checkpoint, Error};
use rullama_train::run::digest::Identity;

use super::super::setup::session::Session;
use super::state;

/// Where a run begins.
#[derive(Default)]
pub struct Start {
    /// What it goes on from.
    pub checkpoint: Option<Checkpoint>,
    /// Checkpoints of earlier runs, or that are damaged: they go when the run begins.
    pub obsolete: Vec<PathBuf>,
    /// What the user should know.
    pub notices: Vec<String>,
}

/// Looks into the output folder. A finished run is replaced; one that was stopped goes on, or is refused with the reason.
pub fn find(recipe: &Recipe, session: &Session, identity: &Identity, fresh: bool) -> Result<Start> {
    let dir = &recipe.output.dir;
    let found = checkpoint::list(dir);
    let paths = || found.iter().map(|(_, path)| path.clone()).collect::<Vec<_>>();
    if fresh || found.is_empty() || state::is_finished(dir) {
        return Ok(Start { obsolete: paths(), ..Start::default() });
    }
    let config = session.frozen.base.config();
    let mut start = Start::default();
    let mut damage = String::new();
    for (step, path) in &found {
        let slots = |recipe: &Recipe| run::slots(recipe, config).map_err(|e| e.to_string());
        match Checkpoint::read(path, config, slots) {
            Ok(checkpoint) => {
                check(&checkpoint, recipe, session, identity, dir)?;
                if !damage.is_empty() {
                    start.notices.push(format!("{damage}; going on from {}, which is sound", path.display()));
                }
                start.notices.push(format!("going on after step {step} of {}", checkpoint.steps));
                start.checkpoint = Some(checkpoint);
                return Ok(start);
            }
            Err(error @ Error::Damaged { .. }) => {
                damage = if damage.is_empty() { error.to_string() } else { format!("{damage}; {error}") };
                start.obsolete.push(path.clone());
            }
            Err(error) => return Err(error.into()),
        }
    }
    bail!("{damage}; no sound checkpoint is left in {}: start anew with --fresh", dir.display())
}

/// Refuses to go on with something else than what was begun.
fn check(
    checkpoint: &Checkpoint,
    recipe: &Recipe,
    session: &Session,
    identity: &Identity,
    dir: &Path,
) -> Result<()> {
    let changes = checkpoint.changes(recipe, identity, session.prepared.steps.plans.len());
    if changes.is_empty() {
        return Ok(());
    }
    bail!(
        "{} holds a run that was stopped after step {} of {}, and this one is another: {}. Set that back to go on, choose \
         another output.dir, or start anew with --fresh",
        dir.display(),
        checkpoint.step,
        checkpoint.steps,
        changes.join("; ")
    )
}
