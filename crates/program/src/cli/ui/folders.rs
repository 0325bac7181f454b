//! The folders that the page may use: models and samples are read from all of them, runs and merged models are written to the first.

use std::path::{Component, Path, PathBuf};

use crate::cli::models;
use anyhow::{Context, Result, bail};

/// Folders below a chosen one that are searched for models.
const DEPTH: usize = 4;
/// Maximum number of models that are listed from the folders.
const MOST: usize = 200;

/// The chosen folders, as absolute paths without links. There is at least one.
pub struct Folders(Vec<PathBuf>);

impl Folders {
    /// Opens the folders, and creates the first one. Without any, it is `rullama-train` in the user's home folder.
    pub fn open(chosen: &[PathBuf]) -> Result<Folders> {
        let usual = || {
            let home = dirs::home_dir().context("no home folder is known; name a folder for the runs")?;
            anyhow::Ok(vec![home.join("rullama-train")])
        };
        let chosen = if chosen.is_empty() { usual()? } else { chosen.to_vec() };
        std::fs::create_dir_all(&chosen[0])
            .with_context(|| format!("cannot create the folder {}", chosen[0].display()))?;
        let open = |path: &PathBuf| {
            let found = path.canonicalize().with_context(|| format!("cannot open {}", path.display()))?;
            if !found.is_dir() {
                bail!("{} is not a folder; name folders that the page may use", path.display());
            }
            Ok(found)
        };
        Ok(Folders(chosen.iter().map(open).collect::<Result<_>>()?))
    }

    /// The folder that runs and merged models are written to.
    pub fn first(&self) -> &Path {
        &self.0[0]
    }

    /// All folders, for messages: `/home/me/rullama-train, /models`.
    pub fn names(&self) -> String {
        self.0.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    }

    /// The folder of all runs.
    pub fn runs(&self) -> PathBuf {
        self.first().join("runs")
    }

    /// The folder of the run `name`, if there is one.
    pub fn run(&self, name: &str) -> Option<PathBuf> {
        let dir = self.runs().join(name);
        (is_plain(name) && dir.is_dir()).then_some(dir)
    }

    /// The path without links, if it is an existing file or folder inside one of the folders.
    pub fn inside(&self, path: &Path) -> Option<PathBuf> {
        let found = path.canonicalize().ok()?;
        self.0.iter().any(|folder| found.starts_with(folder)).then_some(found)
    }

    /// GGUF files in the folders.
    pub fn models(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for folder in &self.0 {
            self.search(folder, DEPTH, &mut found);
        }
        found.sort();
        found.dedup();
        found
    }

    fn search(&self, folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            if found.len() >= MOST || name.starts_with('.') || path == self.runs() {
                continue;
            }
            if path.is_dir() && depth > 0 && !path.is_symlink() {
                self.search(&path, depth - 1, found);
            } else if name.ends_with(".gguf") && path.is_file() {
                found.extend(self.inside(&path));
            }
        }
    }

    /// The value of `model.base` for a base that the page names: a model that is on this machine, or a GGUF file in the folders.
    pub fn base(&self, name: &str) -> Result<String> {
        if models::is_known(name) {
            return Ok(name.into());
        }
        let path = Path::new(name);
        let is_model = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
        match self.inside(path).filter(|found| is_model && path.is_absolute() && found.is_file()) {
            Some(found) => Ok(found.to_string_lossy().into_owned()),
            None => bail!(
                "{name} is neither a model that `rullama-train models` lists nor a .gguf file in {}; choose a model from the list, or start \
                 `rullama-train ui` with the folder that holds the file",
                self.names()
            ),
        }
    }
}

/// Whether `name` is the plain name of a file or folder.
pub fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let alone = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    alone && !name.starts_with('.') && !name.contains(['/', '\\', ':', '\0'])
}

/// A relative path of plain names, such as `datasets/pirate.jsonl`.
pub fn is_relative(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    plain && !text.is_empty() && !text.contains(['\\', ':', '\0'])
}

/// `text` as the name of a folder: other characters than letters, digits, `.`, `_` and `-` become `-`.
pub fn plain(text: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = text.chars().map(keep).take(60).collect();
    let name = name.trim_matches(['-', '.']).to_owned();
    if name.is_empty() { "run".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_stay_inside() {
        let folder = tempfile::tempdir().expect("a folder");
        let folders = Folders::open(&[folder.path().to_owned()]).expect("it exists");
        for name in ["", ".", "..", "../x", "a/b", "/etc", ".hidden", "a\\b", "c:"] {
            assert!(!is_plain(name), "{name}");
            assert_eq!(folders.run(name), None, "{name}");
        }
        for path in ["", "../x", "a/../../b", "/etc/passwd", "a\\b", "c:x"] {
            assert!(!is_relative(Path::new(path)), "{path}");
        }
        assert!(is_relative(Path::new("datasets/pirate.jsonl")));
        assert_eq!(folders.inside(Path::new("/etc/hosts")), None);
        assert_eq!(plain("my model: v1"), "my-model--v1");
        #[cfg(unix)]
        {
            let link = folder.path().join("link.gguf");
            std::os::unix::fs::symlink("/etc/hosts", &link).expect("a link");
            assert_eq!(folders.inside(&link), None);
            assert_eq!(folders.models(), Vec::<PathBuf>::new());
            assert!(folders.base(&link.to_string_lossy()).is_err());
        }
    }
}
