//! Compares exported adapters and merged models with what was trained, on the device.
//!
//! [`write_verified`] exports an adapter in formats whose logits equal those of the adapter in memory. [`compare_merged`]
//! measures how far a merged model is from its base with the adapter.

mod check;
mod divergence;
mod logits;
mod merge;
mod text;
mod write;

use crate::adapter;
use crate::gpu::GpuError;

pub use check::{Fidelity, Verification, effect_of, verify};
pub use divergence::{Divergence, Effect};
pub use logits::{Logits, logits, logits_of};
pub use merge::{MergeCheck, compare_merged};
pub use text::{BUILT_IN, HeldOut, NoTokens};
pub use write::{Exported, Written, write_verified, write_verified_by};

/// Why nothing could be verified and written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The adapter cannot be written or reloaded, or does nothing, or breaks its base.
    #[error(transparent)]
    Adapter(#[from] adapter::Error),
    /// The device failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] crate::files::Error),
}
