//! Finds the GGUF files that other programs keep on this machine: in the Hugging Face cache, in the folders of LM Studio, Jan and
//! llama.cpp, in folders of the user's own, and beside Ollama's store.
//!
//! Every file has a name that can be used as `model.base`. Nothing is copied.

mod folders;
pub mod hub;
pub mod listing;
mod quant;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::{Error, ollama};

pub use quant::{is_model_file, of_file as quantization, parts};

/// A place where models are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// Start of the names of its models, before the colon; empty for Ollama's.
    pub prefix: &'static str,
    /// The name of the program or setting that it belongs to.
    pub title: &'static str,
    /// Its folders, most likely first. They may be missing.
    pub folders: Vec<PathBuf>,
}

/// A model on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The name that `model.base` takes.
    pub name: String,
    /// The file, or the first of several parts; none for an entry of Ollama's whose weights cannot be used.
    pub path: Option<PathBuf>,
    /// Title of the store.
    pub store: &'static str,
}

/// All places that are searched.
pub fn all() -> Vec<Store> {
    let mut stores = vec![
        Store { prefix: "", title: "Ollama", folders: ollama::stores() },
        Store { prefix: hub::PREFIX, title: "Hugging Face", folders: hub::caches() },
    ];
    stores.extend(folders::stores());
    stores
}

/// Every model of every store, each file once, sorted by store and name.
pub fn models() -> Vec<Stored> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for store in all() {
        let mut models = of_store(&store);
        models.sort_by(|a, b| a.name.cmp(&b.name));
        models.retain(|model| {
            // Stores link to files of others. A name of Ollama's may be an alias, and is kept.
            let Some(file) = model.path.as_ref().and_then(|path| path.canonicalize().ok()) else {
                return true;
            };
            seen.insert(file) || model.store == "Ollama"
        });
        models.dedup_by(|a, b| a.name == b.name);
        found.extend(models);
    }
    found
}

fn of_store(store: &Store) -> Vec<Stored> {
    let title = store.title;
    let stored = |(name, path): (String, PathBuf)| Stored { name, path: Some(path), store: title };
    match store.prefix {
        "" => {
            let names = store.folders.iter().flat_map(|folder| ollama::installed(folder));
            let path = |name: &str| ollama::resolve(name, &store.folders).ok();
            names.map(|name| Stored { path: path(&name), name, store: title }).collect()
        }
        hub::PREFIX => store.folders.iter().flat_map(|folder| hub::models(folder)).map(stored).collect(),
        prefix => folders::models(prefix, &store.folders).into_iter().map(stored).collect(),
    }
}

/// The file of the model `name`, if the name is that of a store other than Ollama's. A name such as `jan:latest` may be Ollama's too:
/// it is left to that where this store has no such model.
pub fn resolve(name: &str) -> Option<Result<PathBuf, Error>> {
    if let Some(parsed) = hub::Name::parse(name) {
        return Some(
            parsed.and_then(|parsed| hub::cached_model(&parsed)).map_err(|problem| fail(name, problem)),
        );
    }
    let (prefix, _) = name.split_once(':')?;
    let store = folders::stores().into_iter().find(|store| store.prefix == prefix)?;
    let models = of_store(&store);
    let first = quant::first_part(name);
    let same = |model: &&Stored| model.name == first;
    let alike = |model: &&Stored| model.name.eq_ignore_ascii_case(&first);
    if let Some(found) = models.iter().find(same).or_else(|| models.iter().find(alike)) {
        return found.path.clone().map(Ok);
    }
    let ollamas = ollama::resolve(name, &ollama::stores()).is_ok();
    (!ollamas).then(|| Err(fail(name, missing(name, &store, &models))))
}

fn fail(name: &str, problem: String) -> Error {
    Error::Stored { name: name.into(), problem }
}

/// The rest of a sentence about a model that a store does not have.
fn missing(name: &str, store: &Store, models: &[Stored]) -> String {
    let folders = listed(&store.folders);
    let names: Vec<&str> = models.iter().map(|model| &*model.name).collect();
    let Some(nearest) = nearest(name, &names) else {
        return format!(
            "{} has no models in {folders}; `rullama-train models` lists those of this machine",
            store.title
        );
    };
    let count = names.len();
    format!(
        "{} has no such model in {folders}, but {count} others; did you mean {nearest}? `rullama-train models` lists them",
        store.title
    )
}

/// The name that is most like `name`.
pub fn nearest<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    let similarity = |other: &&&str| strsim::normalized_damerau_levenshtein(name, other);
    names.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b))).copied()
}

/// Folders as a list for messages.
pub fn listed(folders: &[PathBuf]) -> String {
    let shown: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    if shown.is_empty() { "no folder".into() } else { shown.join(", ") }
}

/// Folders below a store that are searched.
const DEPTH: usize = 6;
/// Files that are listed of one folder at most.
const MOST: usize = 2000;

/// Model files below a folder, by their path from it with `/`, sorted. Hidden folders are skipped.
fn below(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    walk(folder, "", DEPTH, &mut found);
    found.sort();
    found
}

fn walk(folder: &Path, above: &str, depth: usize, found: &mut Vec<(String, PathBuf)>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
        if name.starts_with('.') || found.len() >= MOST {
            continue;
        }
        if path.is_dir() {
            if depth > 0 {
                walk(&path, &format!("{above}{name}/"), depth - 1, found);
            }
        } else if is_model_file(&name) {
            found.push((format!("{above}{name}"), path));
        }
    }
}
