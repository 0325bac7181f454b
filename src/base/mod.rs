//! The frozen base model: from a file on the user's disk to checked, named, still quantized matrices.
//!
//! `ollama` and `stores` find the file, `gguf` reads and writes it, `formats` has its weight formats and `quantize` their encoders,
//! `config` describes the model's shape, `tensors` checks the tensors, [`Base`] hands them out, and `fingerprint` recognizes
//! the base. [`crate::families`] opens it.

mod beside;
pub mod config;
mod digest;
pub mod fingerprint;
pub mod formats;
mod frozen;
pub mod gguf;
mod latent;
mod matrix;
mod module;
#[cfg(feature = "native")]
pub mod ollama;
pub mod quantize;
mod rotary;
#[cfg(feature = "native")]
pub mod stores;
pub(crate) mod tensors;

pub use fingerprint::Fingerprint;
pub use formats::GgmlType;
pub use frozen::Base;
pub use gguf::{Gguf, Source, TensorInfo};
pub use matrix::{Matrix, Tensor};
pub use module::Module;

/// Why a base model cannot be used. Every message has the file, what was found, what was expected, and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be opened or mapped.
    #[error("{file}: {source}; check the path and its permissions")]
    Io {
        /// Path as given.
        file: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The bytes are not a sound GGUF file.
    #[error("{file}: {problem}")]
    Damaged {
        /// Name of the file.
        file: String,
        /// The problem: found, expected, and the next step.
        problem: String,
    },
    /// A metadata key is missing, has another type, or a value that no model of the family has.
    #[error("{file}: {problem}")]
    Metadata {
        /// Name of the file.
        file: String,
        /// The problem: found, expected, and the next step.
        problem: String,
    },
    /// A tensor is missing, has another shape, or a type without kernels.
    #[error("{file}: {problem}")]
    Tensor {
        /// Name of the file.
        file: String,
        /// The problem: found, expected, and the next step.
        problem: String,
    },
    /// A sound file of a model that this program does not train.
    #[error("{file}: {problem}")]
    Unsupported {
        /// Name of the file.
        file: String,
        /// The problem: found, expected, and the next step.
        problem: String,
    },
    /// The model is not in Ollama's store, or has no GGUF there.
    #[error("{name}: {problem}")]
    Ollama {
        /// The model as the user named it.
        name: String,
        /// The problem: found, searched, and the next step.
        problem: String,
    },
    /// The model is not where its name says: in the Hugging Face cache, or in a folder of another program.
    #[error("{name}: {problem}")]
    Stored {
        /// The model as the user named it.
        name: String,
        /// The problem: found, searched, and the next step.
        problem: String,
    },
}
