//! Why an adapter cannot be read, written, added up or merged.

use std::path::PathBuf;

use super::combine::CombineError;
use crate::base;
use crate::files;

/// The settings for [`OtherBase::Allow`](super::OtherBase::Allow).
const OTHER_BASE_SWITCH: &str = "--allow-other-base, or lora.allow_other_base = true in a recipe";

/// Why an adapter cannot be read, written, added up or merged.
///
/// Every message says what was found, what was expected, and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] files::Error),
    /// The adapter in memory should not be written.
    #[error("the adapter was not written: {problem}")]
    Adapter {
        /// The problem: found, expected, and the next step.
        problem: String,
    },
    /// The adapter cannot be merged into the base, or the merge would lose it.
    #[error("the adapter was not merged: {problem}")]
    Merge {
        /// The problem: found, expected, and the next step.
        problem: String,
    },
    /// Several adapters cannot be added up.
    #[error(transparent)]
    Combine(#[from] CombineError),
    /// The sum of several adapters does not have the slots to be trained.
    #[error("the sum of the adapters: {problem}")]
    Sum {
        /// The problem: found, expected, and the next step.
        problem: String,
    },
    /// The adapter was trained on another model.
    #[error(
        "{path} was trained on {trained}, but {base} is a different model; use the base that it was trained on, or allow a \
         different one ({OTHER_BASE_SWITCH})"
    )]
    OtherBase {
        /// The adapter.
        path: String,
        /// The base it was trained on.
        trained: String,
        /// The base it is loaded for.
        base: String,
    },
    /// A file cannot be read.
    #[error("{}: {problem}", .path.display())]
    Read {
        /// The file or the folder.
        path: PathBuf,
        /// The problem: found, expected, and the next step.
        problem: String,
    },
    /// A file does not contain the adapter that was written to it.
    #[error("{} was reloaded with {problem}; check the disk and export again", .path.display())]
    Changed {
        /// The file or the folder.
        path: PathBuf,
        /// The problem: found and expected.
        problem: String,
    },
    /// A GGUF file is damaged, or is not an adapter.
    #[error(transparent)]
    Gguf(#[from] base::Error),
    /// The adapter's configuration is damaged, or describes something that this program does not train.
    #[error("{}: {problem}", .path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The problem: found, expected, and the next step.
        problem: String,
    },
    /// The tensors are damaged or do not fit the model.
    #[error("{}: {problem}", .path.display())]
    Tensors {
        /// The file.
        path: PathBuf,
        /// The problem: found, expected, and the next step.
        problem: String,
    },
}
