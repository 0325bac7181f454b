//! A small server that behaves as the Hugging Face Hub does: lists of files, redirects to another address, ranges, tokens, limits, broken
//! connections, and uploads.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// How the server behaves.
#[derive(Default)]
pub struct Behaviour {
    /// Files by `models/ORG/REPO/FILE` or `datasets/ORG/REPO/FILE`.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Token without which nothing is given.
    pub token: Option<String>,
    /// Answers 429 this many times.
    pub limited: usize,
    /// Seconds that a 429 asks to wait.
    pub wait: u64,
    /// Ends each connection after this many bytes of a file.
    pub breaks_after: Option<usize>,
    /// Keeps each connection open after this many bytes of a file in all, without sending more.
    pub stalls_at: Option<usize>,
    /// Does not understand ranges.
    pub no_ranges: bool,
    /// Sends other bytes than it lists.
    pub changed: bool,
    /// Lists the files of a branch under this commit.
    pub commit: Option<String>,
    /// Requests: method, path and the first byte of the range.
    pub requests: Vec<String>,
    /// What was uploaded, by `ORG/REPO/FILE`.
    pub uploaded: BTreeMap<String, Vec<u8>>,
    /// Bodies of requests that create repositories.
    pub created: Vec<Json>,
    /// Large files that were sent ahead, by their digest.
    pub large: BTreeMap<String, Vec<u8>>,
}

/// The running server. It ends with the test program.
pub struct Hub {
    pub address: String,
    pub behaviour: Arc<Mutex<Behaviour>>,
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Request {
    method: String,
    path: String,
    token: Option<String>,
    from: Option<usize>,
    body: Vec<u8>,
}

impl Hub {
    pub fn start() -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        let behaviour = Arc::new(Mutex::new(Behaviour::default()));
        let (shared, own) = (behaviour.clone(), address.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, own) = (shared.clone(), own.clone());
                std::thread::spawn(move || answer(stream, &shared, &own));
            }
        });
        Hub { address, behaviour }
    }

    pub fn set(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.behaviour.lock().expect("no test panics with it"));
    }

    /// The requests since the last call.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.behaviour.lock().expect("no test panics with it").requests)
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut token, mut from, mut length, mut expects) = (None, None, 0, false);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        match name.to_lowercase().as_str() {
            "authorization" => token = value.strip_prefix("Bearer ").map(str::to_owned),
            "range" => {
                from = value.strip_prefix("bytes=").and_then(|range| range.trim_end_matches('-').parse().ok())
            }
            "content-length" => length = value.parse().ok()?,
            "expect" => expects = true,
            _ => {}
        }
    }
    if expects {
        (&*stream).write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, path, token, from, body })
}

fn send(stream: &mut TcpStream, status: &str, headers: &[String], body: &[u8]) {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let head =
        format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

fn answer(mut stream: TcpStream, shared: &Mutex<Behaviour>, own: &str) {
    let Some(request) = read(&stream) else { return };
    let mut it = shared.lock().expect("no test panics with it");
    it.requests.push(format!("{} {} {}", request.method, request.path, request.from.unwrap_or(0)));
    if request.path.starts_with("/cdn/") {
        assert_eq!(request.token, None, "the token went to another address");
    } else if it.token.is_some() && request.token != it.token {
        return send(&mut stream, "401 Unauthorized", &["X-Error-Code: GatedRepo".into()], b"");
    }
    if it.limited > 0 {
        it.limited -= 1;
        return send(&mut stream, "429 Too Many Requests", &[format!("Retry-After: {}", it.wait)], b"");
    }
    if request.method != "GET" {
        return upload(&mut stream, &mut it, &request, own);
    }
    if let Some((path, _)) = request.path.strip_prefix("/api/").and_then(|path| path.split_once("?blobs")) {
        return list(&mut stream, &it, path);
    }
    if let Some(path) = request.path.strip_prefix("/cdn/") {
        let Some(file) = it.files.get(path).cloned() else {
            return send(&mut stream, "404 Not Found", &[], b"");
        };
        let file = if it.changed { file.iter().map(|byte| !byte).collect() } else { file };
        let (breaks, stalls) = (it.breaks_after, it.stalls_at);
        let from = request.from.filter(|_| !it.no_ranges);
        drop(it);
        return content(stream, &file, from, breaks, stalls);
    }
    let path = request.path.trim_start_matches('/').replacen(&format!("/resolve/{COMMIT}/"), "/", 1);
    let path = if path.starts_with("datasets/") { path } else { format!("models/{path}") };
    match it.files.contains_key(&path) {
        // Another name of this machine, as the Hub's content lies elsewhere.
        true => {
            let elsewhere = own.replace("127.0.0.1", "localhost");
            send(&mut stream, "302 Found", &[format!("Location: {elsewhere}/cdn/{path}")], b"");
        }
        false => send(&mut stream, "404 Not Found", &["X-Error-Code: EntryNotFound".into()], b""),
    }
}

fn list(stream: &mut TcpStream, it: &Behaviour, path: &str) {
    let (repo, revision) = path.split_once("/revision/").expect("a revision");
    let files =
        it.files.iter().filter_map(|(name, bytes)| Some((name.strip_prefix(&format!("{repo}/"))?, bytes)));
    let siblings: Vec<Json> = files
        .map(|(name, bytes)| {
            let lfs = json!({ "sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 134 });
            json!({ "rfilename": name, "size": bytes.len(), "blobId": "ab12", "lfs": lfs })
        })
        .collect();
    if siblings.is_empty() {
        return send(stream, "404 Not Found", &["X-Error-Code: RepoNotFound".into()], b"");
    }
    if ![COMMIT, "main", "refs%2Fconvert%2Fparquet"].contains(&revision) {
        return send(stream, "404 Not Found", &["X-Error-Code: RevisionNotFound".into()], b"");
    }
    let commit = it.commit.as_deref().unwrap_or(COMMIT);
    send(stream, "200 OK", &[], json!({ "sha": commit, "siblings": siblings }).to_string().as_bytes());
}

fn content(
    mut stream: TcpStream,
    file: &[u8],
    from: Option<usize>,
    breaks: Option<usize>,
    stalls: Option<usize>,
) {
    let start = from.unwrap_or(0);
    if start > file.len() {
        return send(&mut stream, "416 Range Not Satisfiable", &[], b"");
    }
    let rest = &file[start..];
    let status = match from {
        Some(_) => {
            format!("206 Partial Content\r\nContent-Range: bytes {start}-{}/{}", file.len() - 1, file.len())
        }
        None => "200 OK".into(),
    };
    let sent = rest
        .len()
        .min(breaks.unwrap_or(usize::MAX))
        .min(stalls.map_or(usize::MAX, |at| at.saturating_sub(start)));
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", rest.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&rest[..sent]));
    if stalls.is_some() && sent < rest.len() {
        let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
        let _ = stream.read(&mut [0]);
    }
}

/// Creation of a repository, large files ahead, and the commit.
fn upload(stream: &mut TcpStream, it: &mut Behaviour, request: &Request, own: &str) {
    let json = || serde_json::from_slice::<Json>(&request.body).expect("JSON");
    let ok = |stream: &mut TcpStream, value: Json| send(stream, "200 OK", &[], value.to_string().as_bytes());
    if request.path == "/api/repos/create" {
        it.created.push(json());
        if it.created.len() > 1 {
            return send(stream, "409 Conflict", &[], b"{}");
        }
        return ok(stream, json!({ "url": "u" }));
    }
    if let Some(digest) = request.path.strip_prefix("/cdn/put/") {
        assert_eq!(sha256(&request.body), digest);
        it.large.insert(digest.into(), request.body.clone());
        return ok(stream, json!({}));
    }
    if request.path.contains("/preupload/") {
        let files = json()["files"].as_array().expect("files").clone();
        let mode = |file: &Json| if file["size"].as_u64() > Some(1000) { "lfs" } else { "regular" };
        let files: Vec<Json> = files
            .iter()
            .map(|file| json!({ "path": file["path"], "uploadMode": mode(file), "shouldIgnore": false }))
            .collect();
        return ok(stream, json!({ "files": files }));
    }
    if request.path.ends_with("/info/lfs/objects/batch") {
        let elsewhere = own.replace("127.0.0.1", "localhost");
        let objects: Vec<Json> = json()["objects"]
            .as_array()
            .expect("objects")
            .iter()
            .map(|object| {
                let href = format!("{elsewhere}/cdn/put/{}", object["oid"].as_str().expect("a digest"));
                json!({ "oid": object["oid"], "size": object["size"], "actions": { "upload": { "href": href } } })
            })
            .collect();
        return ok(stream, json!({ "objects": objects }));
    }
    let repo = request
        .path
        .trim_start_matches("/api/models/")
        .split("/commit/")
        .next()
        .expect("a repository")
        .to_owned();
    for line in String::from_utf8_lossy(&request.body).lines() {
        let line: Json = serde_json::from_str(line).expect("JSON");
        let value = &line["value"];
        let path = || format!("{repo}/{}", value["path"].as_str().expect("a path"));
        match line["key"].as_str() {
            Some("file") => {
                assert_eq!(value["encoding"], "base64");
                let text = value["content"].as_str().expect("content");
                it.uploaded.insert(path(), BASE64_STANDARD.decode(text).expect("base64"));
            }
            Some("lfsFile") => {
                let bytes = it.large[value["oid"].as_str().expect("a digest")].clone();
                it.uploaded.insert(path(), bytes);
            }
            _ => {}
        }
    }
    ok(stream, json!({ "commitOid": COMMIT, "commitUrl": "u" }));
}
