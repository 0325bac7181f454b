//! Adapters as files that other programs load.

pub mod drift;
pub mod merged;
pub mod peft;

use std::path::PathBuf;

use crate::files;

/// Why an adapter cannot be written or read. Every message names the file, what was found, what was expected, and the
/// next step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] files::Error),
    /// The adapter in memory is not one that a file should hold.
    #[error("the adapter was not written: {problem}")]
    Adapter {
        /// What was found, what was expected, the next step.
        problem: String,
    },
    /// The adapter cannot be merged into the base, or the merge would be worthless.
    #[error("the adapter was not merged: {problem}")]
    Merge {
        /// What was found, what was expected, the next step.
        problem: String,
    },
    /// A file cannot be read.
    #[error("{}: {problem}", .path.display())]
    Read {
        /// The file or the folder.
        path: PathBuf,
        /// What was found, what was expected, the next step.
        problem: String,
    },
    /// `adapter_config.json` is damaged, or describes what this program does not train.
    #[error("{}: {problem}", .path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What was found, what was expected, the next step.
        problem: String,
    },
    /// The tensors are damaged, or do not fit the model.
    #[error("{}: {problem}", .path.display())]
    Tensors {
        /// The file.
        path: PathBuf,
        /// What was found, what was expected, the next step.
        problem: String,
    },
}
