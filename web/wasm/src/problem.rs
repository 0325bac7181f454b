//! Converts errors of the library to the one type that JavaScript gets.

use std::fmt::Display;

use rullama_train::adapter::Error as AdapterError;
use rullama_train::gpu::GpuError;
use rullama_train::recipe::RecipeError;
use rullama_train::run::{self, DriveError, RunError};
use rullama_train::talk::generate::GenerateError;
use rullama_train::train::TrainError;
use rullama_train::verify::Error as VerifyError;

use crate::types::Problem;

/// Kind of a device error. If the device is lost, the browser reports that slightly later: the engine waits for it.
pub const DEVICE: &str = "device";

impl Problem {
    /// A problem that is not about the recipe.
    pub fn new(message: impl Display) -> Problem {
        Problem { kind: "other", message: message.to_string(), key: None, line: None, column: None }
    }

    /// A problem with the base.
    pub fn of_base(message: impl Display) -> Problem {
        Problem { kind: "base", ..Problem::new(message) }
    }

    /// A problem with a key of the recipe.
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
                "this browser offers no GPU: it blocks this machine's driver or does not support it; try a current Chrome, \
                 Edge, Firefox or Safari, or see chrome://gpu",
            ),
            GpuError::Device(_) => Problem { kind: DEVICE, ..Problem::new(error) },
            GpuError::OutOfMemory => Problem { kind: DEVICE, ..Problem::new(with_remedy(&error)) },
            error => Problem::new(with_remedy(&error)),
        }
    }
}

/// The error with the keys of the recipe that help.
fn with_remedy(error: &GpuError) -> String {
    let remedy = run::remedy(error, str::to_owned);
    remedy.map_or_else(|| error.to_string(), |remedy| format!("{error}; {remedy}"))
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
            DriveError::File(error) => Problem::new(error),
            DriveError::Export(error) => error.into(),
            DriveError::Verify(error) => error.into(),
            error => Problem::new(error),
        }
    }
}

impl From<RunError> for Problem {
    fn from(error: RunError) -> Problem {
        // Conflicts are about keys of the recipe.
        match &error {
            RunError::Conflict(_) => Problem { kind: "recipe", ..Problem::new(error) },
            RunError::Base(_) => Problem::of_base(error),
            _ => Problem::new(error),
        }
    }
}
