//! The HTTP server of `serve`, `web` and `ui`: bounded in connections, memory and time, and closed to pages of other origins.

mod access;
mod body;
mod connections;
mod error;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Request, Response, header};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;

pub use access::{Access, Key};
pub use error::ApiError;

use body::Bodies;
use connections::{Connection, Connections};

use super::fault;

/// Longest time that a client may take to send the headers of a request, or to start its next one.
const HEADERS: Duration = Duration::from_secs(15);
/// Maximum size of the headers of a request, in bytes.
const HEADER_BYTES: usize = 32 << 10;
/// Longest time in which a client may take nothing of a response.
const WRITE: Duration = Duration::from_secs(60);
/// Longest time that open connections may take to finish after Ctrl-C.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted, in which others close.
const PAUSE: Duration = Duration::from_millis(20);

/// State that all connections share.
struct Shared {
    router: TowerToHyperService<Router>,
    access: Access,
    bodies: Bodies,
    write_timeout: Duration,
}

/// Serves `router` on `listener` until `stopped` is true. A request has at most `body_bytes`; the router gets it whole.
pub async fn serve(
    listener: std::net::TcpListener,
    router: Router,
    access: Access,
    body_bytes: usize,
    mut stopped: watch::Receiver<bool>,
) -> Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let shared = Arc::new(Shared {
        router: TowerToHyperService::new(router),
        access,
        bodies: Bodies::new(body_bytes),
        write_timeout: fault::write_timeout().unwrap_or(WRITE),
    });
    let connections = Connections::default();
    let mut tasks = JoinSet::new();
    while !*stopped.borrow() {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
            _ = stopped.wait_for(|stopped| *stopped) => break,
        };
        let Ok((stream, _)) = accepted else {
            // The process has too many open files, or the client is gone.
            connections.close_one();
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        if let Some(connection) = connections.open() {
            tasks.spawn(attend(stream, connection, shared.clone(), stopped.clone()));
        }
    }
    drop(listener);
    let rest = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(SHUTDOWN, rest).await;
    Ok(())
}

/// Answers the requests of one connection.
async fn attend(
    stream: TcpStream,
    connection: Connection,
    shared: Arc<Shared>,
    mut stopped: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true); // pieces of a reply are small
    let mut stream = Box::pin(TimeoutStream::new(stream));
    stream.as_mut().set_write_timeout_pinned(Some(shared.write_timeout));
    let state = connection.state.clone();
    let service = service_fn(move |request| answer(request, shared.clone(), state.clone()));
    let mut serving = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS)
            .max_buf_size(HEADER_BYTES)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        _ = serving.as_mut() => return,
        _ = connection.state.closed() => return,
        _ = stopped.wait_for(|stopped| *stopped) => serving.as_mut().graceful_shutdown(),
    }
    let _ = serving.await;
}

/// Checks a request, reads its body, and lets the router answer it.
async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
    state: Arc<connections::State>,
) -> Result<Response<Body>, Infallible> {
    let (parts, body) = request.into_parts();
    let origin = match shared.access.check(&parts) {
        Ok(origin) => origin,
        Err(refused) if is_visit(&parts.headers) => return Ok(last(&refused.message, refused.to_text())),
        Err(refused) => return Ok(refuse(refused)),
    };
    let mut response = match shared.access.preflight(&parts) {
        Some(response) => response,
        None => match shared.bodies.read(&parts, body).await {
            Err(error) => refuse(error),
            Ok((bytes, held)) => {
                let busy = state.busy();
                let response = match shared.router.call(Request::from_parts(parts, Body::from(bytes))).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                };
                drop(held);
                response.map(|body| Body::new(busy.until_sent(body)))
            }
        },
    };
    if let Some(origin) = origin {
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    }
    response.headers_mut().append(header::VARY, HeaderValue::from_static("origin"));
    Ok(response)
}

/// Whether a person opens a page, who reads text rather than JSON.
fn is_visit(headers: &HeaderMap) -> bool {
    headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|kinds| kinds.contains("text/html"))
}

fn refuse(error: ApiError) -> Response<Body> {
    let message = error.message.clone();
    last(&message, error.into_response())
}

/// The response to a refused request, after which the connection closes. The terminal shows why.
fn last(message: &str, mut response: Response<Body>) -> Response<Body> {
    crate::cli::output::line("refused", message);
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
