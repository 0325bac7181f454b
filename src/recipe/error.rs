//! What can be wrong with a recipe: one message that says where, what was found, and what was expected.

use std::fmt;
use std::path::{Path, PathBuf};

/// Why a recipe was refused.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The recipe file could not be read.
    #[error("cannot read the recipe {}: {source}", .path.display())]
    Read {
        /// The absolute path that was tried.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that the recipe names does not exist.
    #[error("{key}: {} does not exist (paths in a recipe are relative to the working directory)", .path.display())]
    NoFile {
        /// `section.key`.
        key: &'static str,
        /// The absolute path that was tried.
        path: PathBuf,
    },
    /// Not TOML, or not JSON.
    #[error("{place}: {message}")]
    Syntax {
        /// Where.
        place: Place,
        /// What the parser said.
        message: String,
    },
    /// An argument of `--set` without `=`.
    #[error("--set {argument}: expected section.key=value, for instance --set train.learning_rate=2e-4")]
    Override {
        /// The argument.
        argument: String,
    },
    /// A key or section that does not exist.
    #[error("{place}: unknown {what}; {hint}")]
    Unknown {
        /// Where.
        place: Place,
        /// `` key `rnak` in [lora] ``, for instance.
        what: String,
        /// What may have been meant.
        hint: String,
    },
    /// A key or value that is planned and does not exist yet.
    #[error("{place}: {what} is not supported yet; remove it")]
    NotSupported {
        /// Where.
        place: Place,
        /// `` `digest` in [model] ``, for instance.
        what: String,
    },
    /// A value of the wrong type.
    #[error("{place}: {key}: expected {expected}, found {found}")]
    WrongType {
        /// Where.
        place: Place,
        /// `section.key`.
        key: String,
        /// What the key takes.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// A value of the right type that the key does not take.
    #[error("{place}: {key} = {found}: expected {expected}")]
    OutOfRange {
        /// Where.
        place: Place,
        /// `section.key`.
        key: String,
        /// What stands there.
        found: String,
        /// What the key takes.
        expected: String,
    },
    /// A key that must stand in every recipe.
    #[error("{name}: `{key}` is missing; it is {expected}")]
    Missing {
        /// The recipe.
        name: String,
        /// `section.key`.
        key: String,
        /// What the key takes.
        expected: String,
    },
    /// A newer version of the program wrote the recipe, and this one does not understand it.
    #[error("{error}. rullama-train {found} wrote this recipe, this is {}: update the program", env!("CARGO_PKG_VERSION"))]
    Newer {
        /// The version that wrote it.
        found: String,
        /// What is not understood.
        error: Box<RecipeError>,
    },
    /// Two keys that contradict each other, or a value that means nothing.
    #[error("{place}: {key}: {message}")]
    Conflict {
        /// Where the value stands, or the second of the two.
        place: Place,
        /// `section.key`.
        key: String,
        /// What is wrong, and its remedy.
        message: String,
    },
}

impl RecipeError {
    /// The `section.key` that it is about, where it is one.
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

    /// Line and column in characters, both from 1, where it has a place in the text.
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

/// Where in a recipe: `recipes/chat.toml:12:3`, or `--set train.epochs=0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, or the whole override.
    pub name: String,
    /// Line and column in characters, both from 1; `None` in an override.
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

/// The absolute form of a path, or the path itself where the system has none.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
