//! HTTP routes, responses and event streams.

use std::convert::Infallible;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_core::Stream;
use rullama_train::data::template::{Conversation, ReplyParts};
use rullama_train::talk::conversation;
use serde_json::{Value, json};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Sender, UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;

use super::answer::{Answer, Deltas};
use super::error::ApiError;
use super::{Job, Piece, Served, request};

/// Maximum size of a request.
const BODY_BYTES: usize = 16 << 20;
/// How long open connections may take to finish after Ctrl-C.
const SHUTDOWN: Duration = Duration::from_secs(5);

struct App {
    served: Served,
    jobs: Sender<Job>,
    requests: AtomicU64,
}

/// The current time in seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Serves on `listener` until `stopped` is true.
pub fn serve(
    listener: TcpListener,
    served: Served,
    jobs: Sender<Job>,
    mut stopped: watch::Receiver<bool>,
) -> Result<()> {
    let app = Arc::new(App { served, jobs, requests: AtomicU64::new(0) });
    let router = Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/chat/completions", post(complete))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(app);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut stop = stopped.clone();
        let stop = async move {
            let _ = stop.wait_for(|stopped| *stopped).await;
        };
        let server = axum::serve(listener, router).with_graceful_shutdown(stop);
        let mut server = tokio::spawn(server.into_future());
        let _ = stopped.wait_for(|stopped| *stopped).await;
        if tokio::time::timeout(SHUTDOWN, &mut server).await.is_err() {
            server.abort();
        }
        Ok(())
    })
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        json_response(self.status, &self.body())
    }
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
    find_model(&app, &id)?;
    Ok(json_response(StatusCode::OK, &model_object(&app, &id)))
}

/// Whether model `id` includes the adapters. An error if there is no such model.
fn find_model(app: &App, id: &str) -> Result<bool, ApiError> {
    let found = app.served.models.iter().find(|(name, _)| name == id);
    found.map(|(_, with_adapter)| *with_adapter).ok_or_else(|| {
        let available: Vec<&str> = app.served.models.iter().map(|(name, _)| &name[..]).collect();
        let message = format!("model {id:?} does not exist; available: {}", available.join(", "));
        let param = Some("model".into());
        let code = Some("model_not_found");
        ApiError { param, code, ..ApiError::new(StatusCode::NOT_FOUND, message) }
    })
}

async fn complete(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let body = to_bytes(request.into_body(), BODY_BYTES).await.map_err(|_| {
        let message = format!("the request is incomplete or larger than {BODY_BYTES} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    })?;
    let number = app.requests.fetch_add(1, Ordering::Relaxed);
    let served = &app.served;
    let seed = served.defaults.sampling.seed.wrapping_add(number);
    let request = request::parse(&body, &served.defaults, seed)?;
    let with_adapter = find_model(&app, &request.model)?;
    let prompt = prompt(served, &request.conversation)?;
    let parts = ReplyParts::to(&prompt, &served.tokenizer);
    let (pieces, mut receiver) = unbounded_channel();
    let job = Job { with_adapter, prompt, options: request.options, pieces };
    app.jobs.try_send(job).map_err(|error| match error {
        TrySendError::Full(_) => {
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too many requests are waiting; try again later")
        }
        TrySendError::Closed(_) => stopping(),
    })?;
    let answer =
        Answer { id: format!("chatcmpl-{}-{number}", served.created), created: now(), model: request.model };
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

/// The tokens of a conversation. An error if they exceed the context.
fn prompt(served: &Served, conversation: &Conversation) -> Result<Vec<u32>, ApiError> {
    let bad = |message: String, code| {
        let param = Some("messages".into());
        ApiError { param, code, ..ApiError::new(StatusCode::BAD_REQUEST, message) }
    };
    let prompt = served
        .template
        .prompt(&served.tokenizer, conversation)
        .map_err(|e| bad(format!("messages: {e}"), None))?;
    if prompt.len() > served.context {
        let found = prompt.len();
        let message = format!(
            "the messages have {found} tokens, but the context holds {}; shorten them",
            served.context
        );
        return Err(bad(message, Some("context_length_exceeded")));
    }
    Ok(prompt)
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
