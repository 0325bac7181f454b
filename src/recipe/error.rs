//! Errors of a recipe. Each message says where it is, what was found and what was expected.

use std::fmt;
use std::path::{Path, PathBuf};

/// Why a recipe was rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// The recipe file could not be read.
    #[error("cannot read the recipe {}: {source}", .path.display())]
    Read {
        /// Absolute path.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A file named in the recipe does not exist.
    #[error("{key}: {} does not exist (paths in a recipe are relative to the working directory)", .path.display())]
    NoFile {
        /// `section.key`.
        key: &'static str,
        /// Absolute path.
        path: PathBuf,
    },
    /// The text is not valid TOML or JSON.
    #[error("{place}: {message}")]
    Syntax {
        /// Position in the recipe.
        place: Place,
        /// Message of the parser.
        message: String,
    },
    /// An argument of `--set` has no `=`.
    #[error("--set {argument}: expected section.key=value, for instance --set train.learning_rate=2e-4")]
    Override {
        /// The argument.
        argument: String,
    },
    /// An unknown key or section.
    #[error("{place}: unknown {what}; {hint}")]
    Unknown {
        /// Position in the recipe.
        place: Place,
        /// `` key `rnak` in [lora] ``, for instance.
        what: String,
        /// A suggestion.
        hint: String,
    },
    /// A key or value that is planned for a later version.
    #[error("{place}: {what} is not supported yet; remove it")]
    NotSupported {
        /// Position in the recipe.
        place: Place,
        /// `` `digest` in [model] ``, for instance.
        what: String,
    },
    /// A value has the wrong type.
    #[error("{place}: {key}: expected {expected}, found {found}")]
    WrongType {
        /// Position in the recipe.
        place: Place,
        /// `section.key`.
        key: String,
        /// Accepted values.
        expected: String,
        /// Value found.
        found: String,
    },
    /// A value has the right type but is not accepted.
    #[error("{place}: {key} = {found}: expected {expected}")]
    OutOfRange {
        /// Position in the recipe.
        place: Place,
        /// `section.key`.
        key: String,
        /// Value found.
        found: String,
        /// Accepted values.
        expected: String,
    },
    /// A required key is missing.
    #[error("{name}: `{key}` is missing, expected {expected}")]
    Missing {
        /// Name of the recipe.
        name: String,
        /// `section.key`.
        key: String,
        /// Accepted values.
        expected: String,
    },
    /// The recipe was written by a newer version of the program, which this one does not understand.
    #[error("{error}. The recipe was written by rullama-train {found}, and this is version {}: update the program", env!("CARGO_PKG_VERSION"))]
    Newer {
        /// Version that wrote the recipe.
        found: String,
        /// Error of this version.
        error: Box<RecipeError>,
    },
    /// Two keys contradict each other, or a value makes no sense.
    #[error("{place}: {key}: {message}")]
    Conflict {
        /// Position of the value, or of the second key.
        place: Place,
        /// `section.key`.
        key: String,
        /// The problem and how to fix it.
        message: String,
    },
}

impl RecipeError {
    /// The `section.key` at fault, if there is one.
    pub fn key(&self) -> Option<&str> {
        match self {
            RecipeError::NoFile { key, .. } => Some(key),
            RecipeError::WrongType { key, .. }
            | RecipeError::OutOfRange { key, .. }
            | RecipeError::Missing { key, .. }
            | RecipeError::Conflict { key, .. } => Some(key),
            RecipeError::Newer { error, .. } => error.key(),
            _ => None,
        }
    }

    /// The error with the name of its text alone as its place.
    pub(super) fn unplaced(mut self) -> RecipeError {
        if let RecipeError::Syntax { place, .. }
        | RecipeError::Unknown { place, .. }
        | RecipeError::NotSupported { place, .. }
        | RecipeError::WrongType { place, .. }
        | RecipeError::OutOfRange { place, .. }
        | RecipeError::Conflict { place, .. } = &mut self
        {
            place.position = None;
        }
        self
    }

    /// Line and column in the text, in characters and from 1. `None` for an override.
    pub fn position(&self) -> Option<(u32, u32)> {
        match self {
            RecipeError::Syntax { place, .. }
            | RecipeError::Unknown { place, .. }
            | RecipeError::NotSupported { place, .. }
            | RecipeError::WrongType { place, .. }
            | RecipeError::OutOfRange { place, .. }
            | RecipeError::Conflict { place, .. } => place.position,
            RecipeError::Newer { error, .. } => error.position(),
            _ => None,
        }
    }
}

/// A position in a recipe, such as `recipes/chat.toml:12:3` or `--set train.epochs=0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the file, or the whole override.
    pub name: String,
    /// Line and column, in characters and from 1. `None` in an override.
    pub position: Option<(u32, u32)>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some((line, column)) => write!(f, "{}:{line}:{column}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// The absolute form of a path, or the path itself if it has none.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
