//! Why an adapter cannot be read, written, added up or merged.

use std::path::PathBuf;

use super::combine::CombineError;
use crate::base;
use crate::files;

/// How the command line and a recipe say [`OtherBase::Allow`].
const OTHER_BASE_SWITCH: &str = "--allow-other-base, in a recipe lora.allow_other_base = true";

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
    /// Several adapters have no sum.
    #[error(transparent)]
    Combine(#[from] CombineError),
    /// The sum of several adapters does not have the slots that are trained.
    #[error("the sum of the adapters: {problem}")]
    Sum {
        /// What was found, what was expected, the next step.
        problem: String,
    },
    /// The adapter was trained on another model.
    #[error(
        "{path} was trained on {trained}, and {base} is another model; name the base that it was trained on, or allow another \
         one ({OTHER_BASE_SWITCH})"
    )]
    OtherBase {
        /// The adapter.
        path: String,
        /// What it was trained on.
        trained: String,
        /// What it was to be used with.
        base: String,
    },
    /// A file cannot be read.
    #[error("{}: {problem}", .path.display())]
    Read {
        /// The file or the folder.
        path: PathBuf,
        /// What was found, what was expected, the next step.
        problem: String,
    },
    /// What was written is not what was to be written.
    #[error("{} was read back with {problem}; check the disk and export again", .path.display())]
    Changed {
        /// The file or the folder.
        path: PathBuf,
        /// What was found and what was expected.
        problem: String,
    },
    /// A GGUF file is damaged, or lacks what an adapter has.
    #[error(transparent)]
    Gguf(#[from] base::Error),
    /// The description of the adapter is damaged, or describes what this program does not train.
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
