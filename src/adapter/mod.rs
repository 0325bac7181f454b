//! LoRA adapters, in host memory and as files for other programs. Nothing here needs a device.
//!
//! [`write()`] checks an adapter, writes it in a [`Format`] and reads it back. [`load()`] reads adapters of any format for a
//! base and adds them up; [`read_any`] reads one for any model of the right shape. [`merge`] writes a base with an adapter merged
//! into it.

mod combine;
mod error;
mod format;
pub mod formats;
mod left_out;
mod load;
pub mod lora;
pub mod merge;
mod options;
mod origin;
mod read;
mod write;

pub use combine::CombineError;
pub use error::Error;
pub use format::{AdapterPath, Format};
pub use load::{Loaded, OtherBase, load};
pub use options::WriteOptions;
pub use origin::{Origin, origin};
pub use read::{detect, is_safetensors, read_any};
pub(crate) use write::write_and_read;
pub use write::{check, same_scale, write};

/// Metadata key under which files hold the fingerprint of the adapter's base.
const FINGERPRINT: &str = "rullama_train.base_fingerprint";
/// Metadata key under which files hold the digest of the base's vocabulary.
const VOCABULARY: &str = "rullama_train.base_vocabulary";
