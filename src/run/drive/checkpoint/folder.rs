//! The checkpoints of a run's folder: describing, listing and removing them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::digest::unsealed;
use super::{CheckpointError, FILES, FORMAT, PREFIX, STATE, TrainerState};
use crate::files;
use crate::run::identity::{self, Identity};

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

/// Reads the state of the checkpoint in the folder `path`, and its files by name. Checks every file's digest.
pub(super) fn open(path: &Path) -> Result<(TrainerState, HashMap<String, Vec<u8>>), CheckpointError> {
    let damaged = |problem: String| CheckpointError::Damaged { path: path.into(), problem };
    let read = |name: &str| files::read(&path.join(name)).map_err(|e| damaged(format!("{name}: {e}")));
    let state = unsealed(&read(STATE)?).map_err(|e| damaged(format!("{STATE}: {e}")))?;
    if let Some(found) = state["format"].as_u64().filter(|&found| found != FORMAT) {
        let version = state["version"].as_str().unwrap_or("(unknown version)").into();
        return Err(CheckpointError::OtherFormat { path: path.into(), version, found });
    }
    let unreadable = |e: serde_json::Error| damaged(format!("{STATE}: {e}"));
    let state: TrainerState = serde_json::from_value(state).map_err(unreadable)?;
    let mut contents = HashMap::new();
    for (name, expected) in &state.files {
        if !FILES.contains(&name.as_str()) {
            return Err(damaged(format!("{STATE}: {name:?} is not a file of a checkpoint")));
        }
        let bytes = read(name)?;
        if bytes.len() != expected.bytes {
            let found = bytes.len();
            return Err(damaged(format!("{name} has {found} bytes, expected {}", expected.bytes)));
        }
        if identity::sha256(&bytes) != expected.sha256 {
            return Err(damaged(format!("{name} is not what was written: its SHA-256 differs")));
        }
        contents.insert(name.clone(), bytes);
    }
    Ok((state, contents))
}
