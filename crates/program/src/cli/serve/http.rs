//! HTTP routes: from a request to its place in the queue, and back to its response.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use anyhow::Result;
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Sender, unbounded_channel};
use tokio::sync::{Semaphore, watch};

use super::answer::{Answer, Head};
use super::chat::Chat;
use super::continued::Continued;
use super::events::{self, Events, failed, stopping};
use super::prompt::{Asked, Gone, Prepared, Route};
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
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
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
        "{} does not exist; the routes are /v1/chat/completions, /v1/completions, /v1/models and /v1/models/ID",
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

async fn model(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let wrong = |error: PathRejection| ApiError::new(StatusCode::BAD_REQUEST, error.body_text());
    let Path(id) = id.map_err(wrong)?;
    app.served.model(Some(&id))?;
    Ok(json_response(StatusCode::OK, &model_object(&app, &id)))
}

/// Parses the request and encodes its prompts on another thread, which stops if the client disconnects.
async fn prepare(app: &App, route: Route, body: Bytes, number: u64) -> Result<Prepared, ApiError> {
    let failed = |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the request could not be read");
    let gone = Gone::default();
    let (watched, served) = (gone.watch(), app.served.clone());
    let turn = app.encoders.acquire().await.map_err(|_| stopping())?;
    let work = move || prompt::prepare(&served, route, &body, number, &watched);
    let prepared = tokio::task::spawn_blocking(work).await.map_err(failed)?;
    drop((turn, gone));
    prepared
}

async fn chat(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    answer(&app, Route::Chat, request).await
}

async fn completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    answer(&app, Route::Completion, request).await
}

/// Queues a request and returns its replies.
async fn answer(app: &App, route: Route, request: Request) -> Result<Response, ApiError> {
    let body = to_bytes(request.into_body(), usize::MAX).await.map_err(|_| stopping())?; // it is in memory
    let number = app.requests.fetch_add(1, Ordering::Relaxed);
    let served = app.served.clone();
    let Prepared { settings, model, with_adapter, prompts, asked } =
        prepare(app, route, body, number).await?;
    let (count, logprobs) = (prompts.len(), settings.options.logprobs.is_some());
    let echo = matches!(asked, Asked::Completion { echo: true });
    let (created, place) = (now(), format!("{}-{number}", served.created));
    let (pieces, mut receiver) = unbounded_channel();
    let job = Job {
        model: model.clone(),
        with_adapter,
        prompts: prompts.clone(),
        options: settings.options,
        echo,
        pieces,
    };
    let head = |name: &str| Head { id: format!("{name}-{place}"), created, model };
    let answer: Box<dyn Answer> = match asked {
        Asked::Chat(parts) => Box::new(Chat::new(head("chatcmpl"), served, *parts, logprobs)),
        Asked::Completion { echo } => Box::new(Continued::new(head("cmpl"), served, prompts, echo, logprobs)),
    };
    app.jobs.try_send(job).map_err(|error| match error {
        TrySendError::Full(_) => {
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too many requests are waiting; try again later")
        }
        TrySendError::Closed(_) => stopping(),
    })?;
    // An error before the first piece is an HTTP error, also for a stream.
    let first = receiver.recv().await.ok_or_else(stopping)?;
    if let Piece::Failed(message) = first {
        return Err(failed(message));
    }
    if !settings.stream {
        let whole = events::whole(first, receiver, answer, count).await?;
        return Ok(json_response(StatusCode::OK, &whole));
    }
    let stream = Events::new(first, receiver, answer, count, settings.include_usage);
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::from_stream(stream)).into_response())
}
