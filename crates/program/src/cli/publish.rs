//! `export --push`: an adapter in a repository of the Hugging Face Hub, with a model card.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rullama_train::adapter::Format;
use rullama_train::base::Base;
use rullama_train::base::stores::hub::is_repo;
use rullama_train::hub::{self, Contents, Upload};
use rullama_train::run::metrics::{self, History};

use super::card::{CHART, Card, chart};
use super::output;
use super::output::progress::Progress;

/// A repository to send an adapter to.
pub struct Target {
    repo: String,
    public: bool,
}

impl Target {
    /// Checks the name `hf:USER/NAME`, before long work.
    pub fn check(name: &str, public: bool) -> Result<Target> {
        let repo = name.strip_prefix("hf:").unwrap_or(name);
        if !is_repo(repo) {
            bail!("--push {name}: expected hf:USER/NAME, with letters, digits, `.`, `_` and `-`");
        }
        Ok(Target { repo: repo.into(), public })
    }

    /// Sends the adapter in `dir` in these formats. `folder`: the run, or the adapter that they were made from.
    pub fn send(&self, base: &Base, formats: &[Format], dir: &Path, folder: &Path) -> Result<()> {
        let mut files = Vec::new();
        for format in formats {
            files.extend(of_format(*format, dir)?);
        }
        let history = std::fs::read_to_string(folder.join("metrics.jsonl")).ok();
        let events = history.and_then(|text| metrics::parse(&text).ok());
        let history = events.map(|events| History::replay(events, Vec::new(), None));
        let card = Card { repo: &self.repo, base, folder, formats, history: history.as_ref() };
        let mut memory = vec![("README.md", card.text())];
        memory.extend(history.as_ref().and_then(chart).map(|picture| (CHART, picture)));
        files.extend(
            memory
                .into_iter()
                .map(|(path, text)| Upload { path: path.into(), contents: Contents::Bytes(text.into()) }),
        );
        let recipe = folder.join("recipe.resolved.toml");
        if recipe.is_file() {
            files.push(Upload { path: "recipe.resolved.toml".into(), contents: Contents::File(recipe) });
        }
        let progress =
            Progress::new(format!("sending {} to {}", output::count(files.len(), "file"), self.repo), 0);
        let summary = format!(
            "rullama-train {}: {}",
            env!("CARGO_PKG_VERSION"),
            formats.iter().map(|f| f.name()).collect::<Vec<_>>().join(", ")
        );
        let page = hub::push(&self.repo, !self.public, &files, &summary, &mut |path| {
            progress.set_message(format!("sending {path}"))
        });
        progress.finish_and_clear();
        let page = page.context("the exports are written, but not sent")?;
        let visible = if self.public { "public" } else { "private, if it is new" };
        output::line("sent", format_args!("{} to {page} ({visible})", output::count(files.len(), "file")));
        Ok(())
    }
}

/// The files of a format, by their paths in the repository.
fn of_format(format: Format, dir: &Path) -> Result<Vec<Upload>> {
    let place = format.place(dir);
    let upload = |path: PathBuf| {
        let name = path.strip_prefix(dir).unwrap_or(&path).to_string_lossy().replace('\\', "/");
        Upload { path: name, contents: Contents::File(path) }
    };
    let missing =
        || format!("{} has no adapter as {}; add --to {}", dir.display(), format.name(), format.name());
    match format {
        // The folder of a run has other files too.
        Format::Peft => {
            let files = ["adapter_config.json", "adapter_model.safetensors"].map(|name| place.join(name));
            if !files.iter().all(|file| file.is_file()) {
                bail!(missing());
            }
            Ok(files.into_iter().map(upload).collect())
        }
        _ if place.is_dir() => {
            let entries = std::fs::read_dir(&place).with_context(missing)?;
            let mut files: Vec<PathBuf> =
                entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
            files.sort();
            Ok(files.into_iter().map(upload).collect())
        }
        _ if place.is_file() => Ok(vec![upload(place)]),
        _ => bail!(missing()),
    }
}
