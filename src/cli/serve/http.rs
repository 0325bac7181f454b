//! HTTP routes, responses and event streams.

use std::convert::Infallible;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::SystemTime;

use anyhow::Result;
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_core::Stream;
use rullama_train::data::template::ReplyParts;
use rullama_train::talk::conversation;
use serde_json::{Value, json};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Sender, UnboundedReceiver, unbounded_channel};
use tokio::sync::{Semaphore, watch};

use super::answer::{Answer, Deltas};
use super::prompt::{Gone, Prepared};
use super::{Job, Piece, Served, prompt};
use crate::cli::http::{self, Access, ApiError};

/// Maximum size of a request: this, and some bytes per token of the context.
const BODY_BYTES: usize = 1 << 20;
const BODY_BYTES_PER_TOKEN: usize = 32;
/// Number of requests whose prompts are encoded at the same time.
const ENCODERS: usize = 2;

struct App {
    served: Arc<Served>,
    jobs: Sender<Job>,
    requests: AtomicU64,
    encoders: Semaphore,
}

/// The current time in seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Serves on `listener` until `stopped` is true.
pub fn serve(
    listener: TcpListener,
    served: Served,
    access: Access,
    jobs: Sender<Job>,
    stopped: watch::Receiver<bool>,
) -> Result<()> {
    let body_bytes = BODY_BYTES + BODY_BYTES_PER_TOKEN * served.context;
    let (served, encoders) = (Arc::new(served), Semaphore::new(ENCODERS));
    let app = Arc::new(App { served, jobs, requests: AtomicU64::new(0), encoders });
    let router = Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/chat/completions", post(complete))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(app);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(http::serve(listener, router, access, body_bytes, stopped));
    runtime.shutdown_background(); // a prompt that is being encoded has no client any more
    served
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn no_route(request: Request) -> ApiError {
    let message = format!(
        "{} does not exist; the routes are /v1/chat/completions, /v1/models and /v1/models/ID",
        request.uri().path()
    );
    ApiError::new(StatusCode::NOT_FOUND, message)
}

async fn no_method(request: Request) -> ApiError {
    let message = format!("{} does not allow {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message)
}

fn model_object(app: &App, id: &str) -> Value {
    json!({ "id": id, "object": "model", "created": app.served.created, "owned_by": "rullama-train" })
}

async fn models(State(app): State<Arc<App>>) -> Response {
    let models: Vec<Value> = app.served.models.iter().map(|(id, _)| model_object(&app, id)).collect();
    json_response(StatusCode::OK, &json!({ "object": "list", "data": models }))
}

async fn model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, ApiError> {
    app.served.model(Some(&id))?;
    Ok(json_response(StatusCode::OK, &model_object(&app, &id)))
}

/// Parses the request and encodes its prompt on another thread, which stops if the client disconnects.
async fn prepare(app: &App, body: Bytes, number: u64) -> Result<Prepared, ApiError> {
    let failed = |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the request could not be read");
    let gone = Gone::default();
    let (watched, served) = (gone.watch(), app.served.clone());
    let turn = app.encoders.acquire().await.map_err(|_| stopping())?;
    let work = move || prompt::prepare(&served, &body, number, &watched);
    let prepared = tokio::task::spawn_blocking(work).await.map_err(failed)?;
    drop((turn, gone));
    prepared
}

async fn complete(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let body = to_bytes(request.into_body(), usize::MAX).await.map_err(|_| stopping())?; // it is in memory
    let number = app.requests.fetch_add(1, Ordering::Relaxed);
    let served = &app.served;
    let Prepared { request, model, with_adapter, tokens } = prepare(&app, body, number).await?;
    let parts = ReplyParts::to(&tokens, &served.tokenizer).with_tools(request.conversation.tools.clone());
    let (pieces, mut receiver) = unbounded_channel();
    let job = Job { model: model.clone(), with_adapter, prompt: tokens, options: request.options, pieces };
    app.jobs.try_send(job).map_err(|error| match error {
        TrySendError::Full(_) => {
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too many requests are waiting; try again later")
        }
        TrySendError::Closed(_) => stopping(),
    })?;
    let answer = Answer { id: format!("chatcmpl-{}-{number}", served.created), created: now(), model };
    // An error before the first piece is an HTTP error, also for a stream.
    let first = receiver.recv().await.ok_or_else(stopping)?;
    if let Piece::Failed(message) = first {
        return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message));
    }
    if !request.stream {
        return whole(first, receiver, parts, &answer).await;
    }
    let stream = Events {
        receiver,
        answer,
        deltas: Some(Deltas::new(parts)),
        include_usage: request.include_usage,
        first: Some(first),
        begun: false,
        ended: false,
    };
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::from_stream(stream)).into_response())
}

/// Waits for the end of the reply and returns it in one response.
async fn whole(
    first: Piece,
    mut receiver: UnboundedReceiver<Piece>,
    parts: ReplyParts,
    answer: &Answer,
) -> Result<Response, ApiError> {
    let mut next = Some(first);
    loop {
        match next {
            Some(Piece::Text(_)) => next = receiver.recv().await,
            Some(Piece::Done(reply)) => {
                let message = conversation::message(parts, &reply.text);
                return Ok(json_response(StatusCode::OK, &answer.whole(&reply, &message)));
            }
            Some(Piece::Failed(message)) => {
                return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message));
            }
            None => return Err(stopping()),
        }
    }
}

/// The error for requests that are dropped because the server stops.
fn stopping() -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is stopping")
}

/// The reply as server-sent events. If the client disconnects, this is dropped, which closes the channel and stops generation.
struct Events {
    receiver: UnboundedReceiver<Piece>,
    answer: Answer,
    /// `None` after the end of the reply.
    deltas: Option<Deltas>,
    include_usage: bool,
    first: Option<Piece>,
    begun: bool,
    ended: bool,
}

impl Stream for Events {
    type Item = Result<String, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while !self.ended {
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

impl Events {
    /// The events of one piece. No piece means that the server is stopping.
    fn events(&mut self, piece: Option<Piece>) -> String {
        let mut text = String::new();
        let mut event = |value: Value| text += &format!("data: {value}\n\n");
        if !std::mem::replace(&mut self.begun, true) {
            event(self.answer.chunk(json!({ "role": "assistant", "content": "" }), None));
        }
        match piece {
            Some(Piece::Text(piece)) => {
                let deltas = self.deltas.as_mut().map(|d| d.push(&piece, &self.answer)).unwrap_or_default();
                deltas.into_iter().for_each(|delta| event(self.answer.chunk(delta, None)));
            }
            Some(Piece::Done(reply)) => {
                if let Some(deltas) = self.deltas.take() {
                    let (deltas, reason) = deltas.finish(reply.finish, &self.answer);
                    deltas.into_iter().for_each(|delta| event(self.answer.chunk(delta, None)));
                    event(self.answer.chunk(json!({}), Some(reason)));
                }
                if self.include_usage {
                    event(self.answer.usage_chunk(&reply));
                }
                text += "data: [DONE]\n\n";
                self.ended = true;
            }
            Some(Piece::Failed(message)) => {
                event(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message).body());
                self.ended = true;
            }
            None => {
                event(stopping().body());
                self.ended = true;
            }
        }
        text
    }
}
