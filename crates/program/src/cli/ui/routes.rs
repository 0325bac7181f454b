//! The routes: the page's files, and below `api/` what the page asks for.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post, put};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;

use super::app::{App, blocking};
use super::job::{self, Job, Piece};
use super::kept;
use super::page;
use super::problem::Problem;
use super::run::Running;
use super::stream::{self, Lines};
use super::types::{Chat, Command, Export, Merge, Start, Task};
use crate::cli::ollama;

type Shared = State<Arc<App>>;
type Answer = Result<Response, Problem>;
/// Parts of the path. A wrong one gets the API's kind of error.
type InPath<T> = Result<Path<T>, PathRejection>;

/// All routes. Who may use them was checked before.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/{key}/api/state", get(state))
        .route("/{key}/api/bases", get(bases))
        .route("/{key}/api/uploads/{id}/{offset}", put(upload))
        .route("/{key}/api/samples", post(samples))
        .route("/{key}/api/check", post(check))
        .route("/{key}/api/train", post(train))
        .route("/{key}/api/run/events/{from}", get(events))
        .route("/{key}/api/run/command", post(command))
        .route("/{key}/api/runs", get(runs))
        .route("/{key}/api/runs/{name}/{*path}", get(run_file).put(keep_run))
        .route("/{key}/api/chat", post(chat))
        .route("/{key}/api/export", post(export))
        .route("/{key}/api/outputs/{id}/{*path}", get(output))
        .route("/{key}/api/merge", post(merge))
        .route("/{key}/api/{*path}", get(no_route).fallback(no_route))
        .fallback(get(files))
        .with_state(app)
}

fn json(value: &Value) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (headers, value.to_string()).into_response()
}

async fn no_route(request: Request) -> Problem {
    Problem::missing(format!("{} {} does not exist", request.method(), request.uri().path()))
}

/// The body of a request, which is in memory.
async fn bytes(request: Request) -> Result<Bytes, Problem> {
    to_bytes(request.into_body(), usize::MAX).await.map_err(|e| Problem::new(e.to_string()))
}

/// The JSON in the body of a request.
async fn body<T: DeserializeOwned>(request: Request) -> Result<T, Problem> {
    let bytes = bytes(request).await?;
    serde_json::from_slice(&bytes).map_err(|error| Problem::new(format!("the request: {error}")))
}

async fn files(uri: Uri, headers: HeaderMap) -> Response {
    match uri.path().trim_start_matches('/').split_once('/') {
        Some((_, path)) => page::respond(path, &headers),
        None => Redirect::to(&format!("{}/", uri.path())).into_response(),
    }
}

async fn state(State(app): Shared) -> Answer {
    let gpu = app.gpu().await;
    let run = app.run().map(|run| {
        json!({ "name": run.name, "folder": run.dir, "over": run.is_over(), "delivered": run.is_delivered() })
    });
    let installed = blocking(|| Ok(ollama::is_installed())).await?;
    let folders = &app.folders;
    let mut state =
        json!({ "folder": folders.first(), "folders": folders.names(), "ollama": installed, "run": run });
    match gpu {
        Ok(gpu) => state["gpu"] = gpu,
        Err(problem) => state["problem"] = json!(problem),
    }
    Ok(json(&state))
}

async fn bases(State(app): Shared) -> Answer {
    blocking(move || Ok(json(&Value::from(app.bases())))).await
}

async fn upload(State(app): Shared, path: InPath<(String, String, u64)>, request: Request) -> Answer {
    let Path((_, id, offset)) = path?;
    let bytes = bytes(request).await?;
    blocking(move || app.uploads.write(&id, offset, &bytes)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn samples(State(app): Shared, request: Request) -> Answer {
    let task: Task = body(request).await?;
    blocking(move || app.samples(&task)).await.map(|table| json(&table))
}

async fn check(State(app): Shared, request: Request) -> Answer {
    let task: Task = body(request).await?;
    Ok(json(&json!(app.check(task).await?)))
}

async fn train(State(app): Shared, request: Request) -> Answer {
    let start: Start = body(request).await?;
    let run = app.train(start).await?;
    Ok(json(&json!({ "run": run.name, "folder": run.dir })))
}

async fn events(State(app): Shared, path: InPath<(String, usize)>) -> Answer {
    let Path((_, from)) = path?;
    let run = app.last_run()?;
    Ok(Lines { receiver: run.read(from), line: |line| line }.into_response())
}

async fn command(State(app): Shared, request: Request) -> Answer {
    let Command { command } = body(request).await?;
    app.last_run()?.command(command);
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// A file that the page may have.
fn sent(path: Option<PathBuf>) -> Answer {
    let none = || Problem::missing("the file does not exist");
    Ok(stream::file(&path.ok_or_else(none)?)?)
}

async fn run_file(State(app): Shared, path: InPath<(String, String, String)>) -> Answer {
    let Path((_, name, path)) = path?;
    sent(app.folders.run(&name).and_then(|dir| Running::file(&dir, &path)))
}

async fn runs(State(app): Shared) -> Answer {
    blocking(move || Ok(json(&Value::from(kept::list(&app.folders.runs()))))).await
}

/// Writes the page's description of a run, and no other file.
async fn keep_run(State(app): Shared, path: InPath<(String, String, String)>, request: Request) -> Answer {
    let Path((_, name, path)) = path?;
    let text = bytes(request).await?;
    let dir = app.folders.run(&name).filter(|_| path == kept::ABOUT);
    let dir = dir.ok_or_else(|| Problem::missing(format!("runs/{name}/{path} cannot be written")))?;
    blocking(move || kept::keep(&dir, &text)).await.map(|done| json(&done))
}

async fn output(State(app): Shared, path: InPath<(String, String, String)>) -> Answer {
    let Path((_, id, path)) = path?;
    sent(app.output(&id, &path))
}

async fn chat(State(app): Shared, request: Request) -> Answer {
    let Chat { base, adapter, messages, sampling } = body(request).await?;
    app.check_free()?;
    let (pieces, receiver) = unbounded_channel();
    let shared = app.clone();
    let (base, adapter) =
        blocking(move || Ok((shared.folders.base(&base)?, shared.adapter(&adapter)?))).await?;
    let adapter = adapter.map(|(folder, path)| (Some(folder), path));
    let job = Job::Chat(Box::new(job::Chat { base, adapter, messages, sampling, pieces }));
    app.jobs.send(job).map_err(|_| Problem::new("the program is ending"))?;
    let line = |piece: Piece| match piece {
        Piece::Text(text) => json!({ "text": text }).to_string(),
        Piece::Failed(problem) => json!({ "failed": problem }).to_string(),
        Piece::Done => json!({ "done": true }).to_string(),
    };
    Ok(Lines { receiver, line }.into_response())
}

async fn export(State(app): Shared, request: Request) -> Answer {
    let what: Export = body(request).await?;
    let (id, files) = app.export(what).await?;
    Ok(json(&json!({ "output": id, "files": files })))
}

async fn merge(State(app): Shared, request: Request) -> Answer {
    let what: Merge = body(request).await?;
    let (path, printed) = app.merge(what).await?;
    Ok(json(&json!({ "path": path, "printed": printed })))
}
