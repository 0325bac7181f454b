//! Bodies of responses that arrive in pieces.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, channel};

/// Bytes of a file that are read at a time.
const PART: usize = 1 << 20;

/// Lines of JSON. Dropping it, as a page that goes away does, closes the channel.
pub struct Lines<T> {
    pub receiver: UnboundedReceiver<T>,
    pub line: fn(T) -> String,
}

impl<T> Stream for Lines<T> {
    type Item = Result<String, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let line = self.line;
        self.receiver.poll_recv(context).map(|next| next.map(|value| Ok(line(value) + "\n")))
    }
}

impl<T> Unpin for Lines<T> {}

impl<T: Send + 'static> IntoResponse for Lines<T> {
    fn into_response(self) -> Response {
        let headers = [(header::CONTENT_TYPE, "application/x-ndjson"), (header::CACHE_CONTROL, "no-store")];
        (headers, Body::from_stream(self)).into_response()
    }
}

struct Parts(Receiver<io::Result<Bytes>>);

impl Stream for Parts {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

/// A whole file, of which a few parts are in memory at a time.
pub fn file(path: &Path) -> io::Result<Response> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let (sender, receiver) = channel(2);
    tokio::task::spawn_blocking(move || {
        loop {
            let mut part = Vec::with_capacity(PART);
            let read = file.by_ref().take(PART as u64).read_to_end(&mut part);
            let ended = !matches!(read, Ok(1..));
            let part = read.map(|_| Bytes::from(part));
            if part.as_ref().is_ok_and(|part| part.is_empty()) || sender.blocking_send(part).is_err() || ended
            {
                return;
            }
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, length.to_string()),
        (header::CACHE_CONTROL, "no-store".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    Ok((headers, Body::from_stream(Parts(receiver))).into_response())
}
