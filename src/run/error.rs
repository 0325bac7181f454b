//! Errors of preparing and driving a run.

use crate::adapter;
use crate::base;
use crate::data::batch::BatchError;
use crate::data::dataset::DatasetError;
use crate::data::template::TemplateError;
use crate::files;
use crate::gpu::GpuError;
use crate::talk::generate::GenerateError;
use crate::train::TrainError;
use crate::train::ranks::link::LinkError;
use crate::verify;

/// A recipe cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The base cannot be opened.
    #[error(transparent)]
    Base(#[from] base::Error),
    /// The data cannot be read.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The samples cannot be packed into batches.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// An adapter cannot be loaded.
    #[error(transparent)]
    Adapter(#[from] adapter::Error),
    /// The chat template is invalid.
    #[error("data.template: {0}")]
    Template(TemplateError),
    /// A prompt of `[eval] samples` cannot be rendered.
    #[error("eval.samples: {0}")]
    Prompt(#[from] TemplateError),
    /// Two settings contradict each other, or a setting contradicts the base.
    #[error("{0}")]
    Conflict(String),
}

/// An error of a run between its first and its last step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriveError {
    /// A training step or a validation failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A reply to one of `eval.samples` failed.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// A file of the run cannot be written.
    #[error(transparent)]
    File(#[from] files::Error),
    /// The adapter cannot be written.
    #[error(transparent)]
    Export(#[from] adapter::Error),
    /// The exports cannot be compared with the adapter in memory.
    #[error(transparent)]
    Verify(#[from] verify::Error),
}

impl From<LinkError> for DriveError {
    fn from(error: LinkError) -> DriveError {
        DriveError::Train(error.into())
    }
}

impl From<GpuError> for DriveError {
    fn from(error: GpuError) -> DriveError {
        DriveError::Train(error.into())
    }
}
