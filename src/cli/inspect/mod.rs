//! What a file or a folder is: a model, an adapter, a checkpoint, a run, or samples.

mod adapter;
mod checkpoint;
mod model;
mod samples;

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use rullama_train::base::Gguf;
use rullama_train::data::dataset::files;
use rullama_train::run::checkpoint as checkpoints;

pub use samples::read as read_samples;

/// What to describe.
#[derive(Args)]
pub struct InspectArgs {
    /// A GGUF, an adapter of any format, a checkpoint or output folder, samples, or the name of a model.
    path: PathBuf,
    /// The base that an adapter is for, or whose vocabulary counts the tokens of samples: what `model.base` takes. Unset,
    /// what the adapter itself names, and tiny.
    #[arg(long, value_name = "BASE")]
    base: Option<String>,
}

/// Describes it.
pub fn run(args: &InspectArgs) -> Result<()> {
    let (path, base) = (&args.path, args.base.as_deref());
    if path.is_dir() {
        return folder(path, base);
    }
    if files::is_pattern(path) {
        return samples::describe(path, base);
    }
    if !path.exists() {
        // A name that is none is refused in the words of `model.base`.
        return model::opened(&path.to_string_lossy());
    }
    match first_bytes(path)? {
        start if start.starts_with(b"GGUF") => {
            let gguf = Gguf::open(path)?;
            match gguf.get::<&str>("general.type")? {
                Some("adapter") => adapter::describe(path, base),
                _ => model::file(gguf, path),
            }
        }
        start if start.get(8) == Some(&b'{') => adapter::describe(path, base),
        _ if path.extension().is_some_and(|e| e == "toml") => {
            let path = path.display();
            bail!("{path} is no data; `rullama-train check {path}` says what a recipe resolves to")
        }
        _ => samples::describe(path, base),
    }
}

fn folder(path: &Path, base: Option<&str>) -> Result<()> {
    if path.join(checkpoints::STATE).exists() {
        checkpoint::describe(path)?;
        return adapter::describe(path, base);
    }
    let checkpoints = checkpoints::list(path);
    let adapts = ["adapter_config.json", "adapter_model.safetensors", "adapters.safetensors"];
    let is_run = path.join("run.json").exists();
    let is_adapter = adapts.iter().any(|name| path.join(name).exists());
    if is_run || !checkpoints.is_empty() {
        checkpoint::run_folder(path, &checkpoints)?;
    }
    match (is_adapter, is_run || !checkpoints.is_empty()) {
        (true, _) => adapter::describe(path, base),
        (false, true) => Ok(()),
        (false, false) => samples::describe(path, base),
    }
}

/// Enough to tell formats apart.
fn first_bytes(path: &Path) -> Result<Vec<u8>> {
    let mut start = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(9).read_to_end(&mut start));
    read.with_context(|| format!("{}: check the path and its permissions", path.display()))?;
    Ok(start)
}
