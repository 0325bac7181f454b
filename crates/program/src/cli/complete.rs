//! Completion in the shell of what this machine has.

use std::ffi::OsStr;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use rullama_train::base::stores;

/// Completes the name of a base: models of this machine, or the path of a file.
pub fn base() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let start = current.to_string_lossy();
        let names =
            std::iter::once("tiny".into()).chain(stores::models().into_iter().map(|stored| stored.name));
        let names = names.filter(|name: &String| name.starts_with(&*start)).map(CompletionCandidate::new);
        let mut found: Vec<CompletionCandidate> = names.collect();
        found.extend(PathCompleter::file().complete(current));
        found
    })
}
