//! Routes, answers and streams.

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
use rullama_train::data::template::ReplyParts;
use rullama_train::talk::conversation;
use serde_json::{Value, json};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Sender, UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;

use super::answer::{Answer, Deltas};
use super::api::{self, ApiError};
use super::{Job, Piece, Served};

/// Largest request: a long context in a wordy encoding.
const BODY_BYTES: usize = 16 << 20;
/// How long open connections may take to end after Ctrl-C.
const LAST_WORDS: Duration = Duration::from_secs(5);

struct App {
    served: Served,
    jobs: Sender<Job>,
    requests: AtomicU64,
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Serves on `listener` until `stopped` says so.
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
        if tokio::time::timeout(LAST_WORDS, &mut server).await.is_err() {
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
        "there is no {}; there are /v1/chat/completions, /v1/models and /v1/models/ID",
        request.uri().path()
    );
    ApiError::new(StatusCode::NOT_FOUND, message)
}

async fn no_method(request: Request) -> ApiError {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
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

/// Whether the adapters are part of model `id`.
fn find_model(app: &App, id: &str) -> Result<bool, ApiError> {
    let found = app.served.models.iter().find(|(name, _)| name == id);
    found.map(|(_, with_adapter)| *with_adapter).ok_or_else(|| {
        let there: Vec<&str> = app.served.models.iter().map(|(name, _)| &name[..]).collect();
        let message = format!("there is no model {id:?}; there is {}", there.join(" and "));
        let (param, code) = (Some("model".into()), Some("model_not_found"));
        ApiError { param, code, ..ApiError::new(StatusCode::NOT_FOUND, message) }
    })
}

async fn complete(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let body = to_bytes(request.into_body(), BODY_BYTES).await.map_err(|_| {
        let message = format!("the request is cut short, or larger than {BODY_BYTES} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    })?;
    let number = app.requests.fetch_add(1, Ordering::Relaxed);
    let served = &app.served;
    let seed = served.defaults.sampling.seed.wrapping_add(number);
    let request = api::parse(&body, &served.defaults, seed)?;
    let with_adapter = find_model(&app, &request.model)?;
    let bad = |message: String, code| {
        let (status, param) = (StatusCode::BAD_REQUEST, Some("messages".into()));
        ApiError { param, code, ..ApiError::new(status, message) }
    };
    let prompt = served
        .template
        .prompt(&served.tokenizer, &request.conversation)
        .map_err(|e| bad(format!("messages: {e}"), None))?;
    if prompt.len() > served.context {
        let (found, context) = (prompt.len(), served.context);
        let message = format!("the messages have {found} tokens, the context holds {context}; shorten them");
        return Err(bad(message, Some("context_length_exceeded")));
    }
    let (pieces, mut receiver) = unbounded_channel();
    let parts = ReplyParts::to(&prompt, &served.tokenizer);
    let job = Job { with_adapter, prompt, options: request.options, pieces };
    app.jobs.try_send(job).map_err(|error| match error {
        TrySendError::Full(_) => {
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too many requests wait; try again later")
        }
        TrySendError::Closed(_) => ended(),
    })?;
    let answer =
        Answer { id: format!("chatcmpl-{}-{number}", served.created), created: now(), model: request.model };
    // What fails before the first word fails the request.
    let first = receiver.recv().await.ok_or_else(ended)?;
    if let Piece::Failed(message) = first {
        return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message));
    }
    if request.stream {
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
        return Ok((headers, Body::from_stream(stream)).into_response());
    }
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
            None => return Err(ended()),
        }
    }
}

/// The device's side let go of the request: only when the server ends.
fn ended() -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is about to end")
}

/// The reply as server-sent events. Dropped where the client goes away, which closes the channel and ends the generation.
struct Events {
    receiver: UnboundedReceiver<Piece>,
    answer: Answer,
    /// Until the reply has ended.
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
            // A piece of a call alone says nothing yet.
            let text = self.events(piece);
            if !text.is_empty() {
                return Poll::Ready(Some(Ok(text)));
            }
        }
        Poll::Ready(None)
    }
}

impl Events {
    /// What one piece becomes; no piece: the server ends.
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
                event(ended().body());
                self.ended = true;
            }
        }
        text
    }
}
