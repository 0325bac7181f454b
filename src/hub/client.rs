//! Requests to the Hub: address, token, proxy, certificates, and what its answers mean.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, config::RedirectAuthHeaders, http::Response};

use super::persist::{Sent, persist};
use crate::base::stores::hub::{self, Kind};
use crate::base::stores::listing::Listed;

/// Why something was not fetched from the Hub, or not sent to it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text says what was found, what was expected, and the next step.
    #[error("{0}")]
    Refused(String),
    /// No answer: there is no network, or the connection broke.
    #[error("{0}")]
    Unreachable(String),
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] crate::files::Error),
}

/// Times that a request without an answer is sent again, while nothing new arrives.
const RETRIES: u32 = 4;

/// A connection to the Hub.
pub struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

/// A repository at a commit.
#[derive(Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    blob_id: String,
    lfs: Option<Large>,
}

#[derive(Deserialize)]
struct Large {
    sha256: String,
    size: u64,
}

fn set(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

impl Client {
    /// A client with the settings of the environment: `HF_ENDPOINT`, `HF_TOKEN`, `HTTPS_PROXY`, `SSL_CERT_FILE`. Fails where
    /// `HF_HUB_OFFLINE` forbids connections.
    pub fn of_environment() -> Result<Client, Error> {
        let offline = ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].into_iter();
        let yes = |name: &&str| {
            set(name).is_some_and(|value| ["1", "true", "yes", "on"].contains(&&*value.to_lowercase()))
        };
        if let Some(name) = offline.into_iter().find(yes) {
            return Err(Error::Unreachable(format!(
                "{name} is set, so nothing is downloaded; unset it to connect"
            )));
        }
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .user_agent(concat!("rullama-train/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(Duration::from_secs(20)))
            .timeout_per_read(Some(Duration::from_secs(60)))
            .timeout_recv_response(Some(Duration::from_secs(60)));
        if let Some(roots) = own_certificates()? {
            config = config.tls_config(TlsConfig::builder().root_certs(roots).build());
        }
        Ok(Client {
            agent: config.build().into(),
            endpoint: endpoint.trim_end_matches('/').into(),
            token: token(),
        })
    }

    /// The address that requests go to.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Commit and files of a repository at a revision.
    pub fn files(&self, kind: Kind, repo: &str, revision: &str) -> Result<(String, Vec<Listed>), Error> {
        let revision = revision.replace('/', "%2F");
        let path = format!("/api/{}/{repo}/revision/{revision}?blobs=true", kind.plural());
        let mut answer = self.get(&path, 0, repo)?;
        let text = answer.body_mut().read_to_string();
        let text = text.map_err(|error| Error::Unreachable(format!("{}: {error}", self.endpoint)))?;
        let info: Info = serde_json::from_str(&text).map_err(|error| {
            let endpoint = &self.endpoint;
            Error::Refused(format!(
                "{endpoint} answered something else than a list of files ({error}); check HF_ENDPOINT"
            ))
        })?;
        let listed = |file: Sibling| match file.lfs {
            Some(lfs) => Listed {
                path: file.rfilename,
                bytes: lfs.size,
                blob: lfs.sha256.clone(),
                sha256: Some(lfs.sha256),
            },
            None => Listed { path: file.rfilename, bytes: file.size, blob: file.blob_id, sha256: None },
        };
        let sound = |file: &Listed| is_plain(&file.path) && is_blob(&file.blob);
        let files = info.siblings.into_iter().map(listed).filter(sound).collect();
        if !is_blob(&info.sha) {
            return Err(Error::Refused(format!(
                "{} named the commit {:?} of {repo}; check HF_ENDPOINT",
                self.endpoint, info.sha
            )));
        }
        Ok((info.sha, files))
    }

    /// A file of a commit from byte `from` on.
    pub fn file(
        &self,
        kind: Kind,
        repo: &str,
        commit: &str,
        path: &str,
        from: u64,
    ) -> Result<Response<Body>, Error> {
        let start = if kind == Kind::Dataset { "/datasets" } else { "" };
        let path = path.replace('%', "%25").replace(' ', "%20").replace('#', "%23").replace('?', "%3F");
        self.get(&format!("{start}/{repo}/resolve/{commit}/{path}"), from, repo)
    }

    /// Asks until there is an answer, and waits as long as the Hub asks for.
    fn get(&self, path: &str, from: u64, repo: &str) -> Result<Response<Body>, Error> {
        persist(RETRIES, || {
            let mut request =
                self.agent.get(format!("{}{path}", self.endpoint)).header("Accept-Encoding", "identity");
            if let Some(token) = &self.token {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            if from > 0 {
                request = request.header("Range", format!("bytes={from}-"));
            }
            match request.call() {
                Ok(answer) if answer.status().is_success() || answer.status() == 416 => {
                    Sent::Over(Ok(answer))
                }
                Ok(answer) if answer.status() == 429 => {
                    Sent::Again(self.limited(&answer), retry_after(&answer))
                }
                Ok(answer) if answer.status().is_server_error() => {
                    let (endpoint, status) = (&self.endpoint, answer.status());
                    let problem = format!("{endpoint} answered {status}; try again later");
                    Sent::Again(Error::Unreachable(problem), None)
                }
                Ok(answer) => Sent::Over(Err(self.refusal(&answer, repo))),
                Err(error) => Sent::Again(self.unreachable(&error), None),
            }
        })
    }

    /// Whether there is a token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Sends a text to a path of the Hub. An error has the status, or 0.
    pub(super) fn post(
        &self,
        path: &str,
        text: &str,
        kind: &str,
        repo: &str,
    ) -> Result<Response<Body>, (u16, Error)> {
        self.post_to(&format!("{}{path}", self.endpoint), text, kind, repo)
    }

    /// Sends a text to an address that the Hub has named; the token goes to the Hub alone.
    pub(super) fn post_to(
        &self,
        address: &str,
        text: &str,
        kind: &str,
        repo: &str,
    ) -> Result<Response<Body>, (u16, Error)> {
        let mut request = self.agent.post(address).header("Content-Type", kind);
        if kind.contains("git-lfs") {
            request = request.header("Accept", kind);
        }
        if let Some(token) =
            self.token.as_ref().filter(|_| address.starts_with(&format!("{}/", self.endpoint)))
        {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        match request.send(text) {
            Ok(answer) if answer.status().is_success() => Ok(answer),
            Ok(answer) => Err((answer.status().as_u16(), self.refusal(&answer, repo))),
            Err(error) => Err((0, self.unreachable(&error))),
        }
    }

    /// Sends a file to an address that the Hub has named.
    pub(super) fn put(&self, address: &str, headers: &serde_json::Value, bytes: &[u8]) -> Result<(), Error> {
        let mut request = self.agent.put(address);
        for (name, value) in headers.as_object().into_iter().flatten() {
            request = request.header(name, value.as_str().unwrap_or_default());
        }
        match request.send(bytes) {
            Ok(answer) if answer.status().is_success() => Ok(()),
            Ok(answer) => {
                Err(Error::Unreachable(format!("a file was refused with {}; try again", answer.status())))
            }
            Err(error) => Err(self.unreachable(&error)),
        }
    }

    /// The error of a connection.
    fn unreachable(&self, error: &ureq::Error) -> Error {
        Error::Unreachable(format!(
            "{} cannot be reached ({error}); check the network, HTTPS_PROXY and HF_ENDPOINT",
            self.endpoint
        ))
    }

    fn limited(&self, answer: &Response<Body>) -> Error {
        let wait = retry_after(answer).map_or("later".into(), |seconds| format!("in {seconds} s"));
        let token =
            if self.token.is_some() { "" } else { ", or set HF_TOKEN, with which the limit is higher" };
        Error::Unreachable(format!("{} limits requests (429); try again {wait}{token}", self.endpoint))
    }

    /// The meaning of an answer other than success.
    pub(super) fn refusal(&self, answer: &Response<Body>, repo: &str) -> Error {
        let header =
            |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (status, page) = (answer.status(), format!("{}/{repo}", self.endpoint));
        let known = self.token.is_some();
        let text = match (status.as_u16(), header("X-Error-Code")) {
            (_, "GatedRepo") if known => {
                format!("{repo} is gated, and the token may not read it; ask for access on {page}")
            }
            (_, "GatedRepo") => format!(
                "{repo} is gated; ask for access on {page}, then set HF_TOKEN to a token from {}/settings/tokens",
                self.endpoint
            ),
            (_, "RevisionNotFound") => format!("{repo} has no such revision; look at {page}"),
            (_, "EntryNotFound") => format!("{repo} has no such file; look at {page}"),
            (401 | 403, _) if !known => {
                format!("{repo} does not exist or is private; check its name on {page}, or set HF_TOKEN")
            }
            (401 | 403, _) => format!(
                "{repo} does not exist, or the token may not use it ({status}); check its name and HF_TOKEN"
            ),
            (404, _) => format!("{repo} does not exist; check its name on {page}"),
            _ => format!("{page} answered {status} {}; try again later", header("X-Error-Message")),
        };
        Error::Refused(text)
    }
}

/// Seconds that an answer asks to wait.
pub(crate) fn retry_after(answer: &Response<Body>) -> Option<u64> {
    answer.headers().get("Retry-After")?.to_str().ok()?.trim().parse().ok()
}

/// Whether a path of the Hub stays in its folder.
fn is_plain(path: &str) -> bool {
    path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
        && !path.contains(['\\', ':', '\0'])
}

/// Whether a text is a digest, as the name of a file.
fn is_blob(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The token of the environment, or the one that `hf auth login` stored.
fn token() -> Option<String> {
    let stored = || {
        let path = set("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(hub::home()?.join("token")))?;
        std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    set("HF_TOKEN").or_else(|| set("HUGGING_FACE_HUB_TOKEN")).or_else(stored)
}

/// The certificates of `SSL_CERT_FILE` or `REQUESTS_CA_BUNDLE`, for networks with an authority of their own.
pub(crate) fn own_certificates() -> Result<Option<RootCerts>, Error> {
    let Some(path) = set("SSL_CERT_FILE").or_else(|| set("REQUESTS_CA_BUNDLE")) else { return Ok(None) };
    let text = std::fs::read(&path).map_err(|error| {
        Error::Refused(format!("SSL_CERT_FILE {path} cannot be read: {error}; name a file of certificates"))
    })?;
    let certificates = parse_pem(&text).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = certificates.collect();
    if certificates.is_empty() {
        return Err(Error::Refused(format!(
            "SSL_CERT_FILE {path} has no certificate in PEM; name a file of certificates"
        )));
    }
    Ok(Some(RootCerts::new_with_certs(&certificates)))
}
