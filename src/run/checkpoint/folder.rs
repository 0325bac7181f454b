//! The checkpoints of a run's folder: describing, listing and removing them.

use std::path::{Path, PathBuf};

use super::{CheckpointError, PREFIX, TrainerState, open};
use crate::files;
use crate::run::identity::Identity;

/// A description of a checkpoint, read without its model.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Steps taken so far, skipped ones included.
    pub step: usize,
    /// Steps of the whole run.
    pub steps: usize,
    /// Steps that updated the adapter.
    pub updates: u64,
    /// The step of the best evaluation.
    pub best_step: Option<usize>,
    /// Version of the program that wrote it.
    pub version: String,
    /// Digests of base and samples.
    pub identity: Identity,
    /// Bytes of its files, `trainer_state.json` excluded.
    pub bytes: u64,
}

/// Describes the checkpoint in the folder `path`. Fails if any file differs from what was written.
pub fn inspect(path: &Path) -> Result<Summary, CheckpointError> {
    let (TrainerState { version, step, steps, updates, best_step, identity, .. }, contents) = open(path)?;
    let bytes = contents.values().map(|bytes| bytes.len() as u64).sum();
    Ok(Summary { step, steps, updates, best_step, version, identity, bytes })
}

/// Steps and paths of the checkpoints in the folder `dir`, newest first. Empty if the folder does not exist.
pub fn list(dir: &Path) -> Vec<(usize, PathBuf)> {
    let step = |path: PathBuf| {
        let step = path.file_name()?.to_str()?.strip_prefix(PREFIX)?.parse().ok()?;
        Some((step, path))
    };
    let mut found: Vec<(usize, PathBuf)> = files::list(dir).into_iter().flatten().filter_map(step).collect();
    found.sort_by(|a, b| b.cmp(a));
    found
}

/// Removes all but the newest `keep` checkpoints in `dir`, and the remains of interrupted writes and removals.
pub fn prune(dir: &Path, keep: usize) -> Result<(), files::Error> {
    for (_, path) in list(dir).into_iter().skip(keep) {
        files::remove_folder(&path)?;
    }
    files::remove_unfinished(dir)
}
