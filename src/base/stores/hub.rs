//! The cache of the Hugging Face Hub on disk, as `huggingface_hub` lays it out: names of the form `hf:ORG/REPO:TYPE`, and their files.
//!
//! `models--ORG--REPO/refs/main` has a commit, and `snapshots/COMMIT/FILE` is a file of it, usually a link to `blobs/DIGEST`.

use std::path::{Path, PathBuf};

use super::{below, listed, quant};

/// Start of names of the Hub.
pub const PREFIX: &str = "hf";
/// The revision that is meant where none is named.
pub const MAIN: &str = "main";
/// The branch with the Hub's own conversion of a data set.
pub const PARQUET: &str = "refs/convert/parquet";

/// A kind of repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A model.
    Model,
    /// A data set.
    Dataset,
}

impl Kind {
    /// The kind in addresses of the API, and at the start of folders in the cache: `models`.
    pub fn plural(self) -> &'static str {
        match self {
            Kind::Model => "models",
            Kind::Dataset => "datasets",
        }
    }
}

/// A name of the Hub: `hf:ORG/REPO[@REVISION][/FILE][:CHOICE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// `ORG/REPO`.
    pub repo: String,
    /// A branch, a tag or a commit.
    pub revision: Option<String>,
    /// A file of the repository.
    pub file: Option<String>,
    /// The type of a model's weights, or the split of a data set.
    pub choice: Option<String>,
}

/// Addresses of the Hub that a browser shows.
const SITES: [&str; 2] = ["https://huggingface.co/", "https://hf.co/"];

impl Name {
    /// Parses a name. `None` if the text does not start as one of the Hub's; the error is the rest of a sentence about it.
    pub fn parse(text: &str) -> Option<Result<Name, String>> {
        // Copied from a command line of llama.cpp.
        let text = text.trim();
        let after = ["-hf ", "-hfr "].iter().find_map(|flag| text.strip_prefix(flag));
        let rest = after
            .map(str::trim)
            .map(|rest| rest.strip_prefix("hf:").unwrap_or(rest))
            .or_else(|| text.strip_prefix("hf:"));
        if let Some(rest) = rest {
            return Some(Name::of(rest));
        }
        let path = SITES.iter().find_map(|site| text.strip_prefix(site))?;
        Some(Name::of_address(path))
    }

    fn of(text: &str) -> Result<Name, String> {
        let form = || {
            String::from(
                "is not a name of the Hugging Face Hub; write hf:ORG/REPO:TYPE such as hf:unsloth/Qwen3.5-4B-GGUF:Q4_K_M, \
                 hf:ORG/REPO/FILE, or for a data set hf:ORG/NAME:SPLIT",
            )
        };
        let (path, choice) = match text.split_once(':') {
            Some((path, choice)) => (path, Some(choice)),
            None => (text, None),
        };
        let (org, rest) = path.split_once('/').ok_or_else(form)?;
        // A revision may have slashes where a file does not follow.
        let (repo, revision, file) = match (rest.split_once('@'), rest.split_once('/')) {
            (Some((repo, after)), _) if !repo.contains('/') => match after.strip_prefix("refs/") {
                Some(_) => (repo, Some(after), None),
                None => match after.split_once('/') {
                    Some((revision, file)) => (repo, Some(revision), Some(file)),
                    None => (repo, Some(after), None),
                },
            },
            (_, Some((repo, file))) => (repo, None, Some(file)),
            _ => (rest, None, None),
        };
        let path = |text: &str| {
            text.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
                && !text.contains(['\\', '\0'])
        };
        let whole = format!("{org}/{repo}");
        let sound = is_repo(&whole) && [revision, file, choice].into_iter().flatten().all(path);
        if !sound {
            return Err(form());
        }
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Ok(Name { repo: whole, revision: owned(revision), file: owned(file), choice: owned(choice) })
    }

    /// `ORG/REPO/blob/REVISION/FILE`, or the same with `resolve` or `tree`, or the repository alone; `datasets/` may stand before.
    fn of_address(path: &str) -> Result<Name, String> {
        let path = path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
        let path = path.strip_prefix("datasets/").unwrap_or(path);
        let mut parts = path.splitn(5, '/');
        let repo = [parts.next(), parts.next()].map(Option::unwrap_or_default).join("/");
        match (parts.next(), parts.next(), parts.next()) {
            (Some("blob" | "resolve" | "tree"), Some(MAIN), Some(file)) => {
                Name::of(&format!("{repo}/{file}"))
            }
            (Some("blob" | "resolve" | "tree"), Some(revision), Some(file)) => {
                Name::of(&format!("{repo}@{revision}/{file}"))
            }
            (Some("tree"), Some(MAIN), None) | (None, ..) => Name::of(&repo),
            (Some("tree"), Some(revision), None) => Name::of(&format!("{repo}@{revision}")),
            _ => Name::of(path),
        }
    }

    /// The name with another revision.
    pub fn at(&self, revision: &str) -> Name {
        Name { revision: Some(revision.into()), ..self.clone() }
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "hf:{}", self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        if let Some(file) = &self.file {
            write!(f, "/{file}")?;
        }
        self.choice.as_ref().map_or(Ok(()), |choice| write!(f, ":{choice}"))
    }
}

/// Folders of the cache: the one that the environment names, or the usual one.
pub fn caches() -> Vec<PathBuf> {
    let chosen = set("HF_HUB_CACHE").or_else(|| set("HUGGINGFACE_HUB_CACHE"));
    chosen.or_else(|| Some(home()?.join("hub"))).into_iter().collect()
}

/// The folder of Hugging Face's programs: `HF_HOME`, or the usual one.
pub fn home() -> Option<PathBuf> {
    let cache = || set("XDG_CACHE_HOME").or_else(|| Some(std::env::home_dir()?.join(".cache")));
    set("HF_HOME").or_else(|| Some(cache()?.join("huggingface")))
}

/// A path that the environment sets.
fn set(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Whether a text is the name of a repository, `ORG/REPO`.
pub fn is_repo(text: &str) -> bool {
    let plain = |text: &str| {
        !text.is_empty()
            && !text.starts_with(['.', '-'])
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    text.split_once('/').is_some_and(|(org, repo)| plain(org) && plain(repo))
}

/// The folder of a repository in a cache.
pub fn folder(cache: &Path, kind: Kind, repo: &str) -> PathBuf {
    cache.join(format!("{}--{}", kind.plural(), repo.replace('/', "--")))
}

/// The commit that a revision stands for in the folder of a repository: that of a branch, or itself.
pub fn commit(folder: &Path, revision: &str) -> Option<String> {
    let branch = std::fs::read_to_string(folder.join("refs").join(revision)).ok();
    let commit = branch.map_or_else(|| revision.to_owned(), |text| text.trim().to_owned());
    let plain = !commit.is_empty() && commit.chars().all(|c| c.is_ascii_alphanumeric());
    (plain && folder.join("snapshots").join(&commit).is_dir()).then_some(commit)
}

/// The models of a cache: names that name one file each, and the files.
pub fn models(cache: &Path) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((org, repo)) = name.strip_prefix("models--").and_then(|name| name.split_once("--")) else {
            continue;
        };
        let repo = Name { repo: format!("{org}/{repo}"), revision: None, file: None, choice: None };
        let snapshots = entry.path().join("snapshots");
        let main = commit(&entry.path(), MAIN);
        let commits = std::fs::read_dir(&snapshots).into_iter().flatten().flatten();
        for commit in commits.map(|entry| entry.file_name().to_string_lossy().into_owned()) {
            let name = if main.as_ref() == Some(&commit) { repo.clone() } else { repo.at(&commit) };
            let files = below(&snapshots.join(&commit));
            let paths: Vec<&str> = files.iter().map(|(path, _)| &**path).collect();
            let folder = snapshots.join(&commit);
            for (path, file) in files.iter().filter(|(path, _)| is_complete(path, &folder)) {
                let choice = quant::of_file(path);
                let alone = choice.is_some() && quant::choose(&paths, choice.as_deref()) == Ok(path);
                let name = match alone {
                    true => Name { choice, ..name.clone() },
                    false => Name { file: Some(path.clone()), ..name.clone() },
                };
                found.push((name.to_string(), file.clone()));
            }
        }
    }
    found
}

/// Whether all parts of a model are in the folder.
fn is_complete(path: &str, folder: &Path) -> bool {
    quant::parts(path).iter().all(|part| folder.join(part).is_file())
}

/// The file of a model that is in the cache. The error is the rest of a sentence about the name.
pub fn cached_model(name: &Name) -> Result<PathBuf, String> {
    let caches = caches();
    let wanted = name.to_string();
    for cache in &caches {
        let folder = folder(cache, Kind::Model, &name.repo);
        let Some(commit) = commit(&folder, name.revision.as_deref().unwrap_or(MAIN)) else { continue };
        let snapshot = folder.join("snapshots").join(commit);
        let files = below(&snapshot);
        let paths: Vec<&str> = files.iter().map(|(path, _)| &**path).collect();
        let chosen = match &name.file {
            Some(file) => paths.iter().find(|path| **path == quant::first_part(file)).copied(),
            None => quant::choose(&paths, name.choice.as_deref()).ok(),
        };
        let complete = chosen.filter(|path| is_complete(path, &snapshot));
        if let Some(path) = complete {
            return Ok(snapshot.join(path));
        }
    }
    Err(format!(
        "is not in the Hugging Face cache, {}; `rullama-train pull {wanted}` downloads it",
        listed(&caches)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        let of = |text: &str| Name::parse(text).map(|name| name.map(|name| name.to_string()));
        for (text, expected) in [
            ("hf:unsloth/Qwen3.5-4B-GGUF:Q4_K_M", "hf:unsloth/Qwen3.5-4B-GGUF:Q4_K_M"),
            ("-hf ggml-org/gpt-oss-20b-GGUF", "hf:ggml-org/gpt-oss-20b-GGUF"),
            ("hf:a/b@v1.0/x/y.gguf", "hf:a/b@v1.0/x/y.gguf"),
            ("hf:a/b@refs/convert/parquet", "hf:a/b@refs/convert/parquet"),
            ("hf:a/b/BF16/c@d.gguf", "hf:a/b/BF16/c@d.gguf"),
            ("hf:a/b:config/train", "hf:a/b:config/train"),
            ("https://huggingface.co/a/b", "hf:a/b"),
            ("https://huggingface.co/datasets/a/b/tree/main", "hf:a/b"),
            ("https://huggingface.co/a/b/blob/main/x-Q8_0.gguf", "hf:a/b/x-Q8_0.gguf"),
            ("https://hf.co/a/b/resolve/abc/x.gguf?download=true", "hf:a/b@abc/x.gguf"),
        ] {
            assert_eq!(of(text), Some(Ok(expected.into())), "{text}");
        }
        for text in [
            "hf:",
            "hf:a",
            "hf:a/b/../c",
            "hf:../b",
            "hf:a/b@",
            "hf:a/b:",
            "hf:a/b c",
            "hf:a//b",
            "hf:a/b/\\x",
        ] {
            assert!(matches!(of(text), Some(Err(_))), "{text}");
        }
        assert_eq!(of("unsloth/Qwen3.5-4B-GGUF:Q4_K_M"), None);
        assert_eq!(of("hf.co/unsloth/x:Q4_K_M"), None);
    }
}
