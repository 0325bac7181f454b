//! Files of a repository as the Hub lists them, and those that a name stands for.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::hub::{Kind, MAIN, Name, PARQUET, caches, commit, folder};
use super::{listed, quant};
use crate::files;

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Path in the repository.
    pub path: String,
    /// Size.
    pub bytes: u64,
    /// Name of the file in the cache's folder `blobs`.
    pub blob: String,
    /// SHA-256 of large files.
    pub sha256: Option<String>,
}

/// The files of a commit, kept so that a name stands for the same files without a connection.
#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    /// All files of the commit.
    pub files: Vec<Listed>,
}

impl Record {
    fn path(kind: Kind, repo: &str, commit: &str) -> Option<PathBuf> {
        let name = format!("{}--{}--{commit}.json", kind.plural(), repo.replace('/', "--"));
        Some(dirs::cache_dir()?.join("rullama-train").join("hub").join(name))
    }

    /// Keeps the list. A system without a folder for caches keeps none.
    pub fn write(&self, kind: Kind, repo: &str, commit: &str) -> Result<(), files::Error> {
        let Some(path) = Record::path(kind, repo, commit) else { return Ok(()) };
        files::write_atomic(&path, serde_json::to_string(self).expect("plain values").as_bytes())
    }

    /// The list of a commit, if it was kept.
    pub fn read(kind: Kind, repo: &str, commit: &str) -> Option<Record> {
        serde_json::from_slice(&std::fs::read(Record::path(kind, repo, commit)?).ok()?).ok()
    }
}

/// The files of the model that `name` stands for. Fails with the rest of a sentence about the name.
pub fn choose_model(name: &Name, all: &[Listed]) -> Result<Vec<Listed>, String> {
    let paths: Vec<&str> = all.iter().map(|file| &*file.path).collect();
    let first = match &name.file {
        Some(file) if paths.contains(&&**file) => file,
        Some(file) => return Err(format!("has no file {file}; it has {}", models_of(&paths))),
        None => quant::choose(&paths, name.choice.as_deref())?,
    };
    if !first.to_ascii_lowercase().ends_with(".gguf") {
        return Err(format!("is no GGUF file; the repository has {}", models_of(&paths)));
    }
    let find = |part: &String| all.iter().find(|file| file.path == *part).cloned();
    let parts = quant::parts(first);
    let found: Vec<Listed> = parts.iter().filter_map(find).collect();
    match found.len() == parts.len() {
        true => Ok(found),
        false => Err(format!("has {} of {} parts of {first}; choose another file", found.len(), parts.len())),
    }
}

fn models_of(paths: &[&str]) -> String {
    let models: Vec<&str> = paths.iter().copied().filter(|path| quant::is_model_file(path)).collect();
    if models.is_empty() { "no GGUF file".into() } else { models.join(", ") }
}

/// The revision of a data set that `name` reads: the Hub's conversion to Parquet, unless files or a revision are named.
pub fn dataset_revision(name: &Name) -> &str {
    let usual = if name.file.is_some() { MAIN } else { PARQUET };
    name.revision.as_deref().unwrap_or(usual)
}

/// The files of the data set that `name` stands for. Fails with the rest of a sentence about the name.
pub fn choose_samples(name: &Name, all: &[Listed]) -> Result<Vec<Listed>, String> {
    let Some(wanted) = &name.file else { return split(name, all) };
    let pattern = glob::Pattern::new(wanted).map_err(|error| format!("is no pattern: {error}"))?;
    let folder = format!("{}/", wanted.trim_end_matches('/'));
    let is = |file: &&Listed| {
        file.path == *wanted || pattern.matches(&file.path) || file.path.starts_with(&folder)
    };
    let found: Vec<Listed> = all.iter().filter(is).cloned().collect();
    match found.is_empty() {
        false => Ok(found),
        true => Err(format!("has no such file; it has {}", shortened(all.iter().map(|file| &*file.path)))),
    }
}

/// The Parquet files of a split, `CONFIG/SPLIT/0000.parquet`.
fn split(name: &Name, all: &[Listed]) -> Result<Vec<Listed>, String> {
    let parts = |file: &Listed| {
        let mut parts = file.path.rsplitn(3, '/');
        let (last, split, config) = (parts.next()?, parts.next()?, parts.next()?);
        last.ends_with(".parquet").then(|| (config.to_owned(), split.to_owned()))
    };
    let mut known: Vec<(String, String)> = all.iter().filter_map(parts).collect();
    known.dedup();
    let configs: Vec<&str> = unique(known.iter().map(|(config, _)| &**config));
    let usual = if configs.len() == 1 {
        configs.first()
    } else {
        configs.iter().find(|config| **config == "default")
    };
    let in_config =
        |config: &str| unique(known.iter().filter(|(of, _)| of == config).map(|(_, split)| &**split));
    let usual_split = |config: &str| {
        let splits = in_config(config);
        if splits.len() == 1 {
            splits.first().copied()
        } else {
            splits.into_iter().find(|split| *split == "train")
        }
    };
    let chosen = match name.choice.as_deref() {
        None => usual.and_then(|config| Some((*config, usual_split(config)?))),
        Some(choice) => match (choice.split_once('/'), usual) {
            (Some((config, split)), _) => Some((config, split)),
            (None, Some(config)) if in_config(config).contains(&choice) => Some((*config, choice)),
            (None, _) => usual_split(choice).map(|split| (choice, split)),
        },
    };
    let is = |file: &&Listed| parts(file).is_some_and(|(config, split)| chosen == Some((&*config, &*split)));
    let mut found: Vec<Listed> = all.iter().filter(is).cloned().collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    if found.is_empty() {
        let all =
            known.iter().map(
                |(config, split)| {
                    if config == "default" { split.clone() } else { format!("{config}/{split}") }
                },
            );
        let all: Vec<String> = all.collect();
        let all = shortened(all.iter().map(|name| &**name));
        let asked = name
            .choice
            .as_ref()
            .map_or("has several splits".into(), |choice| format!("has no split {choice}"));
        return Err(format!(
            "{asked}; name one behind a colon, such as hf:{}:train; it has {all}",
            name.repo
        ));
    }
    Ok(found)
}

fn unique<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found: Vec<&str> = texts.collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// A list for messages, of twelve items at most.
fn shortened<'a>(items: impl Iterator<Item = &'a str>) -> String {
    let all: Vec<&str> = items.collect();
    let more = all.len().saturating_sub(12);
    let shown = all[..all.len() - more].join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

/// Commit and files of the data set `name` in the cache. The error is the rest of a sentence about the name.
pub fn cached_samples(name: &Name) -> Result<(String, Vec<PathBuf>), String> {
    let caches = caches();
    for cache in &caches {
        let folder = folder(cache, Kind::Dataset, &name.repo);
        let Some(commit) = commit(&folder, dataset_revision(name)) else { continue };
        let Some(record) = Record::read(Kind::Dataset, &name.repo, &commit) else { continue };
        let chosen = choose_samples(name, &record.files)?;
        let place = |file: &Listed| {
            let path = folder.join("snapshots").join(&commit).join(&file.path);
            path.metadata().is_ok_and(|found| found.len() == file.bytes).then_some(path)
        };
        if let Some(files) = chosen.iter().map(place).collect() {
            return Ok((commit, files));
        }
    }
    let caches = listed(&caches);
    Err(format!(
        "is not in the Hugging Face cache, {caches}; `rullama-train pull --dataset {name}` downloads it"
    ))
}

/// The commit in the path of a file in the cache.
pub fn commit_of(path: &Path) -> Option<String> {
    let mut parts = path.iter().skip_while(|part| *part != "snapshots").skip(1);
    parts.next().map(|commit| commit.to_string_lossy().into_owned())
}

/// The digest of a file in the cache, which is the name of its blob where the file is large.
pub fn digest_of(path: &Path) -> Option<String> {
    let blob = path.canonicalize().ok()?;
    let name = blob.file_name()?.to_string_lossy().into_owned();
    (name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(paths: &[&str]) -> Vec<Listed> {
        let file = |path: &&str| Listed { path: (*path).into(), bytes: 1, blob: "a".into(), sha256: None };
        paths.iter().map(file).collect()
    }

    fn samples(name: &str, paths: &[&str]) -> Result<Vec<String>, String> {
        let name = Name::parse(name).expect("of the Hub").expect("a name");
        choose_samples(&name, &files(paths)).map(|found| found.into_iter().map(|file| file.path).collect())
    }

    #[test]
    fn splits_are_chosen() {
        let chat = [
            "default/test_sft/0000.parquet",
            "default/train_sft/0001.parquet",
            "default/train_sft/0000.parquet",
        ];
        assert_eq!(samples("hf:a/b:train_sft", &chat), Ok(vec![chat[2].into(), chat[1].into()]));
        let error = samples("hf:a/b", &chat).expect_err("two");
        assert!(
            error.contains("has several splits; name one") && error.ends_with("test_sft, train_sft"),
            "{error}"
        );
        let two = ["main/train/0000.parquet", "main/test/0000.parquet", "socratic/train/0000.parquet"];
        assert_eq!(samples("hf:a/b:socratic", &two), Ok(vec![two[2].into()]));
        assert_eq!(samples("hf:a/b:main/test", &two), Ok(vec![two[1].into()]));
        assert!(samples("hf:a/b:other", &two).expect_err("none").contains("no split other"));
        assert_eq!(
            samples("hf:a/b", &["x/train/0.parquet", "x/test/0.parquet"]),
            Ok(vec!["x/train/0.parquet".into()])
        );
        assert_eq!(
            samples("hf:a/b/data/*.jsonl", &["data/a.jsonl", "README.md"]),
            Ok(vec!["data/a.jsonl".into()])
        );
        assert_eq!(samples("hf:a/b/data", &["data/a.jsonl", "x"]), Ok(vec!["data/a.jsonl".into()]));
    }

    #[test]
    fn all_parts_of_a_model_are_chosen() {
        let name = |text: &str| Name::parse(text).expect("of the Hub").expect("a name");
        let all =
            files(&["Q8_0/a-Q8_0-00001-of-00002.gguf", "Q8_0/a-Q8_0-00002-of-00002.gguf", "a-Q4_K_M.gguf"]);
        assert_eq!(choose_model(&name("hf:a/b:q8_0"), &all).map(|found| found.len()), Ok(2));
        assert_eq!(
            choose_model(&name("hf:a/b:Q8_0"), &all[..1]).expect_err("one").split(';').next(),
            Some("has 1 of 2 parts of Q8_0/a-Q8_0-00001-of-00002.gguf")
        );
        assert!(
            choose_model(&name("hf:a/b/x.gguf"), &all)
                .expect_err("none")
                .contains("has no file x.gguf; it has Q8_0/a")
        );
    }
}
