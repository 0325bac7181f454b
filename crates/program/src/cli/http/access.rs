//! Who may use the server: checks of Host, Origin, key and content type, and the headers that let pages in.
//!
//! A page of any site can send requests to this machine. Browsers say which site it is from (Origin), and which name it used for
//! this machine (Host), which gives away a site whose name was pointed at this machine (DNS rebinding).

use std::net::IpAddr;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use sha2::{Digest, Sha256};

use super::ApiError;

/// Who may use the server.
pub struct Access {
    /// The address that the server listens on.
    pub address: IpAddr,
    /// Origins of pages that may use it; `*` allows all.
    pub origins: Vec<String>,
    /// The secret that every request needs.
    pub key: Key,
}

/// The secret that every request needs.
pub enum Key {
    /// None.
    Open,
    /// A key in the header `Authorization: Bearer KEY`.
    Header(String),
    /// A key that is the first part of the path, for a person who opens a URL. Below `/KEY/api/` the header needs it too. A browser
    /// sends cookies to every port of this machine, but this key only to the page that has it.
    Path(String),
}

impl Access {
    /// Checks a request. Returns the origin to allow in the response.
    pub fn check(&self, parts: &Parts) -> Result<Option<HeaderValue>, ApiError> {
        let host = self.host(parts)?;
        let origin = self.origin(&parts.headers, &host)?;
        // A browser asks without the key whether a page of another origin may send it.
        if parts.method == Method::OPTIONS && !matches!(self.key, Key::Path(_)) {
            return Ok(origin);
        }
        self.secret(parts)?;
        content_type(parts)?;
        Ok(origin)
    }

    /// The value of Host, if it is a name of this machine.
    fn host(&self, parts: &Parts) -> Result<String, ApiError> {
        if parts.headers.get_all(header::HOST).iter().nth(1).is_some() {
            return Err(ApiError::new(StatusCode::BAD_REQUEST, "the request has more than one Host header"));
        }
        let text = header(&parts.headers, header::HOST).or(parts.uri.authority().map(Authority::as_str));
        let Some(text) = text else {
            return Err(ApiError::new(StatusCode::BAD_REQUEST, "the request has no Host header"));
        };
        let named = |authority: &Authority| self.is_own(authority.host());
        if text.parse().is_ok_and(|authority| named(&authority)) {
            return Ok(text.to_ascii_lowercase());
        }
        let advice =
            self.advice(&format!("to allow that name, start the server with --allow-origin http://{text}"));
        let message = format!(
            "the request is for the host {text:?}, expected localhost or the address of this server{advice}"
        );
        Err(ApiError::new(StatusCode::FORBIDDEN, message))
    }

    fn is_own(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        let allowed = |origin: &String| {
            let authority =
                origin.split_once("://").map_or(&origin[..], |(_, rest)| rest).parse::<Authority>();
            authority.is_ok_and(|authority| authority.host().eq_ignore_ascii_case(&host))
        };
        match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            // An address is not a name, so no other site can have pointed it here.
            Ok(ip) => ip.is_loopback() || ip == self.address || self.address.is_unspecified(),
            Err(_) => host == "localhost" || host.ends_with(".localhost") || self.origins.iter().any(allowed),
        }
    }

    /// The origin to allow. An error for pages of other origins.
    fn origin(&self, headers: &HeaderMap, host: &str) -> Result<Option<HeaderValue>, ApiError> {
        let Some(value) = headers.get(header::ORIGIN) else { return Ok(None) };
        let origin = value.to_str().unwrap_or_default().to_ascii_lowercase();
        let allowed =
            |allowed: &String| allowed == "*" || allowed.trim_end_matches('/').eq_ignore_ascii_case(&origin);
        if origin == format!("http://{host}") || self.origins.iter().any(allowed) {
            return Ok(Some(value.clone()));
        }
        let advice = self.advice(&format!("to allow them, start it with --allow-origin {origin}"));
        let message = format!("pages of {origin} may not use this server{advice}");
        Err(ApiError::new(StatusCode::FORBIDDEN, message))
    }

    /// The end of an error about `--allow-origin`, which a server for one page does not have.
    fn advice(&self, text: &str) -> String {
        if matches!(self.key, Key::Path(_)) { String::new() } else { format!("; {text}") }
    }

    /// Checks the key.
    fn secret(&self, parts: &Parts) -> Result<(), ApiError> {
        match &self.key {
            Key::Open => Ok(()),
            Key::Header(key) => in_header(key, &parts.headers),
            Key::Path(key) => {
                let mut path = parts.uri.path().trim_start_matches('/').splitn(2, '/');
                let (first, rest) = (path.next().unwrap_or_default(), path.next().unwrap_or_default());
                if !is_same(first, key) {
                    let message = "this address has no valid key; open the address that `rullama-train ui` printed when it was started";
                    return Err(ApiError::new(StatusCode::UNAUTHORIZED, message));
                }
                if rest.starts_with("api/") { in_header(key, &parts.headers) } else { Ok(()) }
            }
        }
    }

    /// The response to a browser's question whether a page may send a request.
    pub fn preflight(&self, parts: &Parts) -> Option<Response<Body>> {
        let asks = parts.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if parts.method != Method::OPTIONS || !asks {
            return None;
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers: [(HeaderName, &'static str); 4] = [
            (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST"),
            (header::ACCESS_CONTROL_MAX_AGE, "600"),
            (HeaderName::from_static("access-control-allow-private-network"), "true"),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, "authorization, content-type"),
        ];
        for (name, value) in headers {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        if let Some(wanted) = parts.headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
        Some(response)
    }
}

/// Whether two keys are equal. Digests take the same time to compare wherever the keys differ.
fn is_same(sent: &str, key: &str) -> bool {
    Sha256::digest(sent) == Sha256::digest(key)
}

/// Requires the key in the header.
fn in_header(key: &str, headers: &HeaderMap) -> Result<(), ApiError> {
    let sent = header(headers, header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
    if sent.is_some_and(|sent| is_same(sent.trim(), key)) {
        return Ok(());
    }
    let problem = if sent.is_some() { "the API key is wrong" } else { "the request has no API key" };
    let message = format!("{problem}; send the header Authorization: Bearer KEY");
    let code = Some("invalid_api_key");
    Err(ApiError { code, ..ApiError::new(StatusCode::UNAUTHORIZED, message) })
}

/// Requires JSON, which a page of another origin cannot send without asking first.
fn content_type(parts: &Parts) -> Result<(), ApiError> {
    if parts.method != Method::POST {
        return Ok(());
    }
    let found = header(&parts.headers, header::CONTENT_TYPE).unwrap_or("nothing");
    let kind = found.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let message = format!("the Content-Type is {found}, expected application/json");
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

fn header(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
