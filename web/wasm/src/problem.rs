//! Errors of the library as the one kind that JavaScript is told of.

use std::fmt::Display;

use rullama_train::adapter::Error as AdapterError;
use rullama_train::gpu::GpuError;
use rullama_train::recipe::RecipeError;
use rullama_train::run::{DriveError, RunError};
use rullama_train::talk::generate::GenerateError;
use rullama_train::train::TrainError;
use rullama_train::verify::Error as VerifyError;

use crate::types::Problem;

/// What a device reported. It may be lost, which it tells a moment later: the engine waits for that.
pub const DEVICE: &str = "device";

impl Problem {
    pub fn new(message: impl Display) -> Problem {
        Problem { kind: "other", message: message.to_string(), key: None, line: None, column: None }
    }

    /// About a key of the recipe.
    pub fn of_key(key: &str, message: impl Display) -> Problem {
        Problem { kind: "recipe", key: Some(key.into()), ..Problem::new(message) }
    }
}

impl From<RecipeError> for Problem {
    fn from(error: RecipeError) -> Problem {
        let (line, column) = error.position().unzip();
        let key = error.key().map(Into::into);
        Problem { kind: "recipe", key, line, column, ..Problem::new(error) }
    }
}

impl From<GpuError> for Problem {
    fn from(error: GpuError) -> Problem {
        match error {
            GpuError::Lost(_) => Problem { kind: "lost", ..Problem::new(error) },
            GpuError::NoDevice => Problem::new(
                "this browser gives no GPU: it blocks or lacks the driver of this machine; try a current Chrome, Edge, \
                 Firefox or Safari, or look at chrome://gpu",
            ),
            GpuError::Device(_) => Problem { kind: DEVICE, ..Problem::new(error) },
            error => Problem::new(error),
        }
    }
}

impl From<TrainError> for Problem {
    fn from(error: TrainError) -> Problem {
        match error {
            TrainError::Gpu(error) => error.into(),
            error => Problem::new(error),
        }
    }
}

impl From<GenerateError> for Problem {
    fn from(error: GenerateError) -> Problem {
        match error {
            GenerateError::Gpu(error) => error.into(),
            error => Problem::new(error),
        }
    }
}

impl From<AdapterError> for Problem {
    fn from(error: AdapterError) -> Problem {
        Problem::new(error)
    }
}

impl From<VerifyError> for Problem {
    fn from(error: VerifyError) -> Problem {
        match error {
            VerifyError::Gpu(error) => error.into(),
            error => Problem::new(error),
        }
    }
}

impl From<DriveError> for Problem {
    fn from(error: DriveError) -> Problem {
        match error {
            DriveError::Train(error) => error.into(),
            DriveError::Generate(error) => error.into(),
            DriveError::Export(error) => error.into(),
            DriveError::Verify(error) => error.into(),
        }
    }
}

impl From<RunError> for Problem {
    fn from(error: RunError) -> Problem {
        // A conflict is between keys, and names them first.
        match &error {
            RunError::Conflict(_) => Problem { kind: "recipe", ..Problem::new(error) },
            _ => Problem::new(error),
        }
    }
}
