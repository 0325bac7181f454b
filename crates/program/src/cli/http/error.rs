//! Errors in OpenAI's format.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
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

    /// The message alone, for a person who opens a page.
    pub fn to_text(&self) -> Response {
        let mut text = self.message.clone();
        text.push('\n');
        (self.status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
    }

    /// The body of the response.
    pub fn body(&self) -> Value {
        let kind = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::UNAUTHORIZED => "authentication_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        };
        json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, [(header::CONTENT_TYPE, "application/json")], self.body().to_string()).into_response()
    }
}
