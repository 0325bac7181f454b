//! Errors as the page's API has them.

use anyhow::Error;
use axum::extract::rejection::PathRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rullama_train::recipe::RecipeError;
use rullama_train::run::RunError;
use serde::Serialize;

/// An error, in the fields of the page's `Problem`.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    #[serde(skip)]
    status: u16,
    /// `recipe`, `base` or `other`.
    kind: &'static str,
    pub message: String,
    /// The key of the recipe, `section.key`.
    key: Option<String>,
    /// Line and column in the recipe, in characters from 1.
    line: Option<u32>,
    column: Option<u32>,
}

impl Problem {
    /// A problem that is not about the recipe.
    pub fn new(message: impl Into<String>) -> Problem {
        let message = message.into();
        Problem { status: 422, kind: "other", message, key: None, line: None, column: None }
    }

    /// A problem with the base.
    pub fn of_base(message: impl Into<String>) -> Problem {
        Problem { kind: "base", ..Problem::new(message) }
    }

    /// A problem with a key of the recipe.
    pub fn of_key(key: &str, message: impl Into<String>) -> Problem {
        Problem { kind: "recipe", key: Some(key.into()), ..Problem::new(message) }
    }

    /// Whether it is about a key of this section of the recipe.
    pub fn is_of(&self, section: &str) -> bool {
        self.key.as_ref().is_some_and(|key| key.starts_with(section))
    }

    /// A request that has to wait for something else.
    pub fn busy(message: impl Into<String>) -> Problem {
        Problem { status: 409, ..Problem::new(message) }
    }

    /// A request for something that does not exist.
    pub fn missing(message: impl Into<String>) -> Problem {
        Problem { status: 404, ..Problem::new(message) }
    }

    /// The problem with the folder `dir` left out of its message, for files that the page has sent.
    pub fn without(self, dir: &std::path::Path) -> Problem {
        let folder = format!("{}{}", dir.display(), std::path::MAIN_SEPARATOR);
        Problem { message: self.message.replace(&folder, ""), ..self }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let message = crate::cli::message(&error);
        if let Some(found) = error.downcast_ref::<RecipeError>() {
            let (line, column) = found.position().unzip();
            let key = found.key().map(Into::into);
            return Problem { kind: "recipe", key, line, column, ..Problem::new(message) };
        }
        match error.downcast_ref::<RunError>() {
            Some(RunError::Conflict(_)) => Problem { kind: "recipe", ..Problem::new(message) },
            Some(RunError::Base(_)) => Problem::of_base(message),
            _ => Problem::new(message),
        }
    }
}

impl From<RecipeError> for Problem {
    fn from(error: RecipeError) -> Problem {
        Error::from(error).into()
    }
}

impl From<PathRejection> for Problem {
    fn from(error: PathRejection) -> Problem {
        Problem { status: 400, ..Problem::new(format!("the address of the request: {}", error.body_text())) }
    }
}

impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Problem {
        Error::from(error).into()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_string(&self).expect("plain values under text keys");
        (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
    }
}
