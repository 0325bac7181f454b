//! Files sent to a repository of the Hub, in one commit.

use std::path::PathBuf;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use ureq::{Body, http::Response};

use super::client::{Client, Error};
use crate::words::hex;

/// A file to send.
pub struct Upload {
    /// Path in the repository.
    pub path: String,
    /// Its bytes.
    pub contents: Contents,
}

/// Where the bytes of a file are.
pub enum Contents {
    /// In memory.
    Bytes(Vec<u8>),
    /// On disk.
    File(PathBuf),
}

/// Bytes of a file that the Hub looks at to tell texts from binary files.
const SAMPLE: usize = 512;

impl Upload {
    fn bytes(&self) -> Result<Vec<u8>, Error> {
        match &self.contents {
            Contents::Bytes(bytes) => Ok(bytes.clone()),
            Contents::File(path) => std::fs::read(path)
                .map_err(|error| Error::Refused(format!("{} cannot be read: {error}", path.display()))),
        }
    }
}

/// Creates the model repository `repo` if it does not exist, and commits `files` to it. An existing repository keeps its visibility. Returns
/// the address of its page.
pub fn push(
    repo: &str,
    private: bool,
    files: &[Upload],
    summary: &str,
    progress: &mut dyn FnMut(&str),
) -> Result<String, Error> {
    let client = Client::of_environment()?;
    if !client.has_token() {
        return Err(Error::Refused(format!(
            "no token to write to {repo}; set HF_TOKEN to one with write access, from {}/settings/tokens, or run `hf auth login`",
            client.endpoint()
        )));
    }
    let (organization, name) = repo.split_once('/').unwrap_or(("", repo));
    let new = json!({ "type": "model", "organization": organization, "name": name, "private": private });
    match client.post("/api/repos/create", &new.to_string(), "application/json", repo) {
        // It exists.
        Ok(_) => {}
        Err((409, _)) => {}
        Err((_, error)) => return Err(error),
    }
    let mut lines =
        vec![json!({ "key": "header", "value": { "summary": summary, "description": "" } }).to_string()];
    for file in files {
        progress(&file.path);
        lines.push(operation(&client, repo, file)?.to_string());
    }
    let path = format!("/api/models/{repo}/commit/main");
    client
        .post(&path, &(lines.join("\n") + "\n"), "application/x-ndjson", repo)
        .map_err(|(_, error)| error)?;
    Ok(format!("{}/{repo}", client.endpoint()))
}

/// The line of the commit for a file. Large files and binary ones are sent ahead.
fn operation(client: &Client, repo: &str, file: &Upload) -> Result<Value, Error> {
    let bytes = file.bytes()?;
    let sample = BASE64_STANDARD.encode(&bytes[..bytes.len().min(SAMPLE)]);
    let asked = json!({ "files": [{ "path": file.path, "sample": sample, "size": bytes.len() }] });
    let path = format!("/api/models/{repo}/preupload/main");
    let answer = json_of(client.post(&path, &asked.to_string(), "application/json", repo), client)?;
    if answer["files"][0]["uploadMode"] != "lfs" {
        let content = BASE64_STANDARD.encode(&bytes);
        return Ok(
            json!({ "key": "file", "value": { "path": file.path, "content": content, "encoding": "base64" } }),
        );
    }
    let digest = hex(Sha256::digest(&bytes).as_slice());
    send(client, repo, &digest, &bytes)?;
    Ok(
        json!({ "key": "lfsFile", "value": { "path": file.path, "algo": "sha256", "oid": digest, "size": bytes.len() } }),
    )
}

/// Sends a large file, unless the Hub has it.
fn send(client: &Client, repo: &str, digest: &str, bytes: &[u8]) -> Result<(), Error> {
    let asked = json!({
        "operation": "upload", "transfers": ["basic"], "hash_algo": "sha256", "ref": { "name": "main" },
        "objects": [{ "oid": digest, "size": bytes.len() }],
    });
    let path = format!("/{repo}.git/info/lfs/objects/batch");
    let answer =
        json_of(client.post(&path, &asked.to_string(), "application/vnd.git-lfs+json", repo), client)?;
    let object = &answer["objects"][0];
    if let Some(message) = object["error"]["message"].as_str() {
        return Err(Error::Refused(format!("{} does not take the file: {message}", client.endpoint())));
    }
    let actions = &object["actions"];
    let Some(href) = actions["upload"]["href"].as_str() else { return Ok(()) };
    client.put(href, &actions["upload"]["header"], bytes)?;
    if let Some(href) = actions["verify"]["href"].as_str() {
        let asked = json!({ "oid": digest, "size": bytes.len() }).to_string();
        client.post_to(href, &asked, "application/vnd.git-lfs+json", repo).map_err(|(_, error)| error)?;
    }
    Ok(())
}

fn json_of(answer: Result<Response<Body>, (u16, Error)>, client: &Client) -> Result<Value, Error> {
    let mut answer = answer.map_err(|(_, error)| error)?;
    let text = answer.body_mut().read_to_string().unwrap_or_default();
    serde_json::from_str(&text).map_err(|error| {
        Error::Refused(format!(
            "{} answered something else than JSON ({error}); check HF_ENDPOINT",
            client.endpoint()
        ))
    })
}
