//! Replies as one response, or as a stream of server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::http::StatusCode;
use futures_core::Stream;
use rullama_train::talk::generate::Reply;
use rullama_train::talk::scores::Score;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;

use super::Piece;
use super::answer::{Answer, Usage};
use crate::cli::http::ApiError;

/// The error for requests that are dropped because the server stops.
pub fn stopping() -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is stopping")
}

/// The error for requests that fail on the device.
pub fn failed(message: String) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
}

/// Waits for `count` replies and returns the response to all of them.
pub async fn whole(
    first: Piece,
    mut receiver: UnboundedReceiver<Piece>,
    mut answer: Box<dyn Answer>,
    count: usize,
) -> Result<Value, ApiError> {
    // Prompts that are answered together end in any order.
    let (mut prompts, mut replies) = (vec![Vec::new(); count], vec![None; count]);
    let (mut next, mut usage) = (Some(first), Usage::default());
    loop {
        match next.ok_or_else(stopping)? {
            Piece::Prompt(number, scores) => prompts[number] = scores,
            Piece::Text(..) => {}
            Piece::Failed(message) => return Err(failed(message)),
            Piece::Done(number, reply) => {
                usage.add(&reply);
                replies[number] = Some(reply);
            }
        }
        if replies.iter().all(Option::is_some) {
            let all: Vec<(Vec<Score>, Reply)> =
                prompts.into_iter().zip(replies.into_iter().flatten()).collect();
            return Ok(answer.whole(&all, &usage));
        }
        next = receiver.recv().await;
    }
}

/// The replies as server-sent events. If the client disconnects, this is dropped, which closes the channel and stops generation.
pub struct Events {
    receiver: UnboundedReceiver<Piece>,
    answer: Box<dyn Answer>,
    include_usage: bool,
    usage: Usage,
    first: Option<Piece>,
    begun: bool,
    /// Replies that have not ended.
    left: usize,
}

impl Events {
    /// Events of `count` replies, whose first piece is there already.
    pub fn new(
        first: Piece,
        receiver: UnboundedReceiver<Piece>,
        answer: Box<dyn Answer>,
        count: usize,
        include_usage: bool,
    ) -> Events {
        let usage = Usage::default();
        Events { receiver, answer, include_usage, usage, first: Some(first), begun: false, left: count }
    }

    /// The events of one piece. No piece means that the server is stopping.
    fn events(&mut self, piece: Option<Piece>) -> String {
        let mut events = Vec::new();
        if !std::mem::replace(&mut self.begun, true) {
            events = self.answer.begin();
        }
        match piece {
            Some(Piece::Prompt(number, scores)) => events.extend(self.answer.prompt(number, &scores)),
            Some(Piece::Text(number, text, scores)) => {
                events.extend(self.answer.text(number, &text, &scores));
            }
            Some(Piece::Done(number, reply)) => {
                events.extend(self.answer.done(number, &reply));
                self.usage.add(&reply);
                self.left -= 1;
                if self.left == 0 && self.include_usage {
                    events.push(self.answer.counted(&self.usage));
                }
                if self.left == 0 {
                    return text(events) + "data: [DONE]\n\n";
                }
            }
            Some(Piece::Failed(message)) => {
                events.push(failed(message).body());
                self.left = 0;
            }
            None => {
                events.push(stopping().body());
                self.left = 0;
            }
        }
        text(events)
    }
}

fn text(events: Vec<Value>) -> String {
    events.into_iter().map(|event| format!("data: {event}\n\n")).collect()
}

impl Stream for Events {
    type Item = Result<String, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while self.left > 0 {
            let piece = match self.first.take() {
                Some(piece) => Some(piece),
                None => match self.receiver.poll_recv(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(piece) => piece,
                },
            };
            // Part of a tool call produces no event yet.
            let text = self.events(piece);
            if !text.is_empty() {
                return Poll::Ready(Some(Ok(text)));
            }
        }
        Poll::Ready(None)
    }
}
