//! Errors of reading and writing checkpoints.

use std::path::PathBuf;

use super::FORMAT;
use crate::{adapter, files};

/// A checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] files::Error),
    /// The adapter cannot be exported: it is not finite, or has no effect.
    #[error(transparent)]
    Adapter(#[from] adapter::Error),
    /// The checkpoint is incomplete, or differs from what was written.
    #[error("{} is damaged: {problem}", .path.display())]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// The problem: found and expected.
        problem: String,
    },
    /// The checkpoint is what was written, but its matrices are not those of this base.
    #[error(
        "{} is sound, but it is of a run on another base ({base:?}) and does not fit this one: {problem}. Set model.base to that base to \
         resume, or choose another output.dir",
        .path.display()
    )]
    OtherBase {
        /// The folder.
        path: PathBuf,
        /// The base that its recipe names.
        base: String,
        /// The problem: found and expected.
        problem: String,
    },
    /// Another version of the program wrote the checkpoint.
    #[error(
        "{} was written by rullama-train {version} in format {found}; this program reads format {FORMAT}. {}, choose another \
         output.dir, or start over with --fresh",
        .path.display(),
        if *.found > FORMAT { "Update the program" } else { "Finish the run with that version" }
    )]
    OtherFormat {
        /// The folder.
        path: PathBuf,
        /// The version of the program that wrote it.
        version: String,
        /// The version of its files.
        found: u64,
    },
}
