//! The files of the page over HTTP, with ranges, caching, and the headers that workers with shared memory need.

use std::net::TcpListener;

use anyhow::Result;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http_range_header::parse_range_header;
use rullama_train::run::identity;
use tokio::sync::watch;

use super::page::{self, File};
use crate::cli::http::{self, Access, Key};

/// Content security policy: only the page's own code runs. It may fetch from other hosts, for a base at a URL.
const POLICY: &str = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self' blob:; \
    img-src 'self' data:; connect-src 'self' blob: https: http://localhost:* http://127.0.0.1:*; \
    object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of every response.
const HEADERS: [(header::HeaderName, &str); 6] = [
    (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (header::HeaderName::from_static("cross-origin-embedder-policy"), "require-corp"),
    (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::ACCEPT_RANGES, "bytes"),
];

/// Maximum size of a request: the page sends none.
const BODY_BYTES: usize = 1 << 10;

/// Serves on `listener` until the program ends.
pub fn serve(listener: TcpListener) -> Result<()> {
    let access = Access { address: listener.local_addr()?.ip(), origins: Vec::new(), key: Key::Open };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (_running, stopped) = watch::channel(false);
    runtime.block_on(http::serve(listener, Router::new().fallback(get(answer)), access, BODY_BYTES, stopped))
}

/// The element by which the page learns that the program behind it computes.
const NATIVE: &str = "<head>\n    <meta name=\"engine\" content=\"native\" />";

async fn answer(uri: Uri, headers: HeaderMap) -> Response {
    respond(uri.path(), &headers)
}

/// [`respond`] for `ui`, whose page computes nothing itself.
pub fn respond_native(path: &str, headers: &HeaderMap) -> Response {
    match page::find(path).filter(|file| file.path == "index.html") {
        Some(file) => {
            let html = String::from_utf8_lossy(file.bytes).replacen("<head>", NATIVE, 1);
            let about = [
                (header::CONTENT_TYPE, file.mime_type()),
                (header::CACHE_CONTROL, "no-store"),
                (header::REFERRER_POLICY, "no-referrer"), // the path holds the key
            ];
            (HEADERS, about, html).into_response()
        }
        None => respond(path, headers),
    }
}

/// Responds with a file, a range of it, or "not modified".
fn respond(path: &str, headers: &HeaderMap) -> Response {
    let Some(file) = page::find(path) else {
        let text = format!("{path} does not exist; the page is at /\n");
        return (StatusCode::NOT_FOUND, HEADERS, text).into_response();
    };
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let (tag, keep) = if file.is_named_by_digest() {
        (format!("\"{}\"", file.path), "public, max-age=31536000, immutable")
    } else {
        (format!("\"{}\"", identity::sha256(file.bytes)), "no-cache") // the browser revalidates every time
    };
    let about = [
        (header::CONTENT_TYPE, file.mime_type().to_string()),
        (header::CACHE_CONTROL, keep.to_string()),
        (header::ETAG, tag.clone()),
    ];
    if header(header::IF_NONE_MATCH).is_some_and(|tags| tags.contains(&tag)) {
        return (StatusCode::NOT_MODIFIED, HEADERS, about).into_response();
    }
    // Serve the whole file if the client has a part of another version.
    let same = header(header::IF_RANGE).is_none_or(|wanted| wanted == tag);
    match header(header::RANGE).filter(|_| same).map(|range| part(file, range)) {
        None | Some(Part::Whole) => (HEADERS, about, Body::from(file.bytes)).into_response(),
        Some(Part::Range(start, end)) => {
            let range = [(header::CONTENT_RANGE, format!("bytes {start}-{end}/{}", file.bytes.len()))];
            (StatusCode::PARTIAL_CONTENT, HEADERS, about, range, Body::from(&file.bytes[start..=end]))
                .into_response()
        }
        Some(Part::None) => {
            let range = [(header::CONTENT_RANGE, format!("bytes */{}", file.bytes.len()))];
            (StatusCode::RANGE_NOT_SATISFIABLE, HEADERS, range).into_response()
        }
    }
}

/// The part of a file that a client requests.
enum Part {
    /// The whole file: also for invalid or multiple ranges, as RFC 9110 allows.
    Whole,
    /// First and last byte.
    Range(usize, usize),
    /// A range outside the file.
    None,
}

fn part(file: File, range: &str) -> Part {
    let Ok(parsed) = parse_range_header(range) else { return Part::Whole };
    match parsed.validate(file.bytes.len() as u64).as_deref() {
        Ok([one]) => Part::Range(*one.start() as usize, *one.end() as usize),
        Ok(_) => Part::Whole,
        Err(_) => Part::None,
    }
}
