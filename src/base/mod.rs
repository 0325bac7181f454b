//! The frozen base model: from a file on the user's disk to checked, named, still quantized matrices.
//!
//! `ollama` finds the file, `source` reads one by ranges, `gguf` and `parse` read the container, `gguf_writer` writes one,
//! `value` is its metadata, `quant` its block formats (`quantize` makes them), `hyperparameters` the model's shape, `tensors`
//! checks what is there, `base` hands it out, and `fingerprint` recognizes it.

pub mod base;
pub mod config;
pub mod fingerprint;
pub mod gguf;
pub mod gguf_writer;
mod hyperparameters;
pub mod module;
#[cfg(feature = "native")]
pub mod ollama;
mod parse;
pub mod planes;
pub mod quant;
pub mod quantize;
pub mod shapes;
pub mod source;
mod tensors;
pub mod value;

pub use base::{Base, Matrix, Tensor};
pub use fingerprint::Fingerprint;
pub use gguf::{Gguf, TensorInfo};
pub use module::Module;
pub use quant::GgmlType;
pub use source::Source;

/// Why a base model cannot be used. Every message names the file, what was found, what was expected, and the next step.
#[derive(Debug, thiserror::Error)]
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
        /// What was found, what was expected, the next step.
        problem: String,
    },
    /// A metadata key is missing, has another type, or a value that no Gemma 4 has.
    #[error("{file}: {problem}")]
    Metadata {
        /// Name of the file.
        file: String,
        /// What was found, what was expected, the next step.
        problem: String,
    },
    /// A tensor is missing, has another shape, or a type without kernels.
    #[error("{file}: {problem}")]
    Tensor {
        /// Name of the file.
        file: String,
        /// What was found, what was expected, the next step.
        problem: String,
    },
    /// A sound file of a model that this program does not train.
    #[error("{file}: {problem}")]
    Unsupported {
        /// Name of the file.
        file: String,
        /// What was found, what was expected, the next step.
        problem: String,
    },
    /// The model is not in Ollama's store, or has no GGUF there.
    #[error("{name}: {problem}")]
    Ollama {
        /// The model as the user named it.
        name: String,
        /// What was found, what was searched, the next step.
        problem: String,
    },
}
