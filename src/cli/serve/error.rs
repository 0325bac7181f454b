//! Errors in OpenAI's format.

use axum::http::StatusCode;
use serde_json::{Value, json};

/// An error in OpenAI's format.
#[derive(Debug)]
pub struct ApiError {
    pub status: StatusCode,
    pub message: String,
    /// The request field that is wrong.
    pub param: Option<String>,
    pub code: Option<&'static str>,
}

impl ApiError {
    /// An error that is not about one field.
    pub fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code: None }
    }

    /// An error in the request field `param`.
    pub fn at(param: &str, message: impl Into<String>) -> ApiError {
        let message = format!("{param}: {}", message.into());
        ApiError { param: Some(param.into()), ..ApiError::new(StatusCode::BAD_REQUEST, message) }
    }

    /// The body of the response.
    pub fn body(&self) -> Value {
        let kind = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        };
        json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
    }
}
