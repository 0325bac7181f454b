//! Reading the bodies of requests within limits of size, time and memory.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use futures_core::Stream;
use hyper::body::Incoming;
use rullama_train::words;

use super::ApiError;

/// Longest time that a client may take to send a body.
const TIME: Duration = Duration::from_secs(30);
/// Bodies up to this size are always read.
const SMALL: usize = 64 << 10;
/// Bytes that all larger bodies together may occupy.
const ALL: usize = 64 << 20;

/// Reads bodies, and counts the bytes of those that are not answered yet.
pub struct Bodies {
    /// Maximum size of one body.
    largest: usize,
    held: Arc<AtomicUsize>,
}

/// The memory of a body, until it is dropped.
pub struct Held {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Bodies {
    /// Reads bodies of at most `largest` bytes.
    pub fn new(largest: usize) -> Bodies {
        Bodies { largest, held: Arc::default() }
    }

    /// Reads a whole body.
    pub async fn read(&self, parts: &Parts, body: Incoming) -> Result<(Bytes, Held), ApiError> {
        let length =
            parts.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        if length.is_some_and(|length: usize| length > self.largest) {
            return Err(self.too_large());
        }
        let late = |_| {
            let message = format!("the request did not arrive within {} seconds", TIME.as_secs());
            ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
        };
        tokio::time::timeout(TIME, self.collect(body)).await.map_err(late)?
    }

    async fn collect(&self, body: Incoming) -> Result<(Bytes, Held), ApiError> {
        let mut chunks = Body::new(body).into_data_stream();
        let mut bytes = Vec::new();
        let mut held = Held { bytes: 0, all: self.held.clone() };
        while let Some(chunk) = poll_fn(|context| Pin::new(&mut chunks).poll_next(context)).await {
            let chunk = chunk.map_err(|_| {
                ApiError::new(
                    StatusCode::BAD_REQUEST,
                    "the request ended before its last byte; send it again",
                )
            })?;
            if bytes.len() + chunk.len() > self.largest {
                return Err(self.too_large());
            }
            bytes.extend_from_slice(&chunk);
            held.bytes += chunk.len();
            let all = self.held.fetch_add(chunk.len(), Ordering::Relaxed) + chunk.len();
            if all > ALL && bytes.len() > SMALL {
                let message = "the server holds too many large requests; try again later";
                return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message));
            }
        }
        Ok((bytes.into(), held))
    }

    fn too_large(&self) -> ApiError {
        let largest = words::bytes(self.largest as u64);
        ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the request is larger than {largest}; shorten it"),
        )
    }
}
