//! `inspect`: describes a model, an adapter, a checkpoint, the output folder of a run, or samples.

mod adapter;
mod checkpoint;
mod model;
mod samples;
mod tokens;

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use rullama_train::adapter::is_safetensors;
use rullama_train::base::Gguf;
use rullama_train::data::dataset::files;
use rullama_train::run::checkpoint as checkpoints;
use serde_json::json;

use super::{output, pull};

pub use samples::{first as print_first_sample, read as read_samples};

/// Options of `inspect`.
#[derive(Args)]
pub struct InspectArgs {
    /// A GGUF file, an adapter in any export format, a checkpoint or output folder, samples, or the name of a model.
    #[arg(required_unless_present = "text", add = crate::cli::complete::base())]
    path: Option<PathBuf>,
    /// Base model of an adapter [default: the base that the adapter's files name], or whose tokenizer counts the tokens of
    /// samples and of --text [default: tiny].
    #[arg(long, value_name = "BASE", add = crate::cli::complete::base())]
    base: Option<String>,
    /// Print the id, the text and the loss flag of every token of the samples that are shown.
    #[arg(long)]
    ids: bool,
    /// Show this many samples, or this many pairs.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    first: u64,
    /// Print the ids of a text, with special tokens and without, instead of describing a file.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["path", "ids", "first"])]
    text: Option<String>,
    /// Print one JSON object; with --ids or --text it has the ids.
    #[arg(long)]
    json: bool,
}

impl InspectArgs {
    /// How to show samples.
    fn shown(&self) -> samples::Shown {
        samples::Shown { first: self.first as usize, ids: self.ids, json: self.json }
    }

    /// Refuses options that are for samples alone.
    fn only_files(&self) -> Result<()> {
        match self.ids || self.first != 1 {
            true => bail!("--ids and --first are for samples; leave them out"),
            false => Ok(()),
        }
    }
}

/// Finds out what the path is and describes it.
pub fn run(args: &InspectArgs) -> Result<()> {
    let Some(path) = &args.path else {
        let base = args.base.as_deref();
        return tokens::describe(args.text.as_deref().unwrap_or_default(), base, args.json);
    };
    if args.json && !args.ids {
        output::keep();
        described(path, args)?;
        output::finish(json!({ "path": path }));
        return Ok(());
    }
    described(path, args)
}

fn described(path: &Path, args: &InspectArgs) -> Result<()> {
    let base = args.base.as_deref();
    if path.is_dir() {
        return folder(path, args);
    }
    if files::is_pattern(path) || files::is_of_hub(path) && args.base.is_some() {
        pull::samples(path)?;
        return samples::describe(path, base, &args.shown());
    }
    if !path.exists() {
        args.only_files()?;
        // Errors are those of `model.base`.
        return model::describe_named(&path.to_string_lossy());
    }
    match first_bytes(path)? {
        start if start.starts_with(b"GGUF") => {
            args.only_files()?;
            let gguf = Gguf::open(path)?;
            match gguf.get::<&str>("general.type")? {
                Some("adapter") => adapter::describe(path, base),
                _ => model::describe_file(gguf, path),
            }
        }
        start if is_safetensors(&start) => {
            args.only_files()?;
            adapter::describe(path, base)
        }
        _ if path.extension().is_some_and(|e| e == "html") => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).display();
            bail!(
                "{} is a report; open it in a browser, or use `rullama-train inspect {folder}` for its run",
                path.display()
            )
        }
        _ if path.extension().is_some_and(|e| e == "toml") => {
            let path = path.display();
            bail!("{path} is a recipe; use `rullama-train check {path}`")
        }
        _ => samples::describe(path, base, &args.shown()),
    }
}

fn folder(path: &Path, args: &InspectArgs) -> Result<()> {
    let base = args.base.as_deref();
    if path.join(checkpoints::STATE).exists() {
        args.only_files()?;
        checkpoint::describe(path)?;
        return adapter::describe(path, base);
    }
    let checkpoints = checkpoints::list(path);
    let adapts = ["adapter_config.json", "adapter_model.safetensors", "adapters.safetensors"];
    let is_run = path.join("run.json").exists();
    let is_adapter = adapts.iter().any(|name| path.join(name).exists());
    if is_run || !checkpoints.is_empty() {
        args.only_files()?;
        checkpoint::run_folder(path, &checkpoints)?;
    }
    match (is_adapter, is_run || !checkpoints.is_empty()) {
        (true, _) => args.only_files().and_then(|()| adapter::describe(path, base)),
        (false, true) => Ok(()),
        (false, false) => match inside(path)? {
            inside if inside.is_empty() => samples::describe(path, base, &args.shown()),
            inside => inside.iter().try_for_each(|path| match path.is_dir() {
                true => folder(path, args),
                false => args.only_files().and_then(|()| adapter::describe(path, base)),
            }),
        },
    }
}

/// Runs and adapters in a folder: what `export` writes into its folder, and a folder of runs.
fn inside(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.retain(|path| {
        let has = |name: &str| path.join(name).exists();
        match path.is_dir() {
            true => has("run.json") || has("adapter_config.json") || has("adapters.safetensors"),
            false => path.file_name().is_some_and(|name| name == "adapter.gguf"),
        }
    });
    Ok(paths)
}

/// The first nine bytes, enough to recognise the format.
fn first_bytes(path: &Path) -> Result<Vec<u8>> {
    let mut start = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(9).read_to_end(&mut start));
    read.with_context(|| format!("{}: check the path and its permissions", path.display()))?;
    Ok(start)
}
