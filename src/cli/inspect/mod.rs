//! `inspect`: describes a model, an adapter, a checkpoint, the output folder of a run, or samples.

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

pub use samples::{first as print_first_sample, read as read_samples};

/// Options of `inspect`.
#[derive(Args)]
pub struct InspectArgs {
    /// A GGUF file, an adapter in any export format, a checkpoint or output folder, samples, or the name of a model.
    path: PathBuf,
    /// Base model of an adapter [default: the base that the adapter's files name], or whose tokenizer counts the tokens of
    /// samples [default: tiny].
    #[arg(long, value_name = "BASE")]
    base: Option<String>,
}

/// Finds out what the path is and describes it.
pub fn run(args: &InspectArgs) -> Result<()> {
    let path = &args.path;
    let base = args.base.as_deref();
    if path.is_dir() {
        return folder(path, base);
    }
    if files::is_pattern(path) {
        return samples::describe(path, base);
    }
    if !path.exists() {
        // Errors are those of `model.base`.
        return model::describe_named(&path.to_string_lossy());
    }
    match first_bytes(path)? {
        start if start.starts_with(b"GGUF") => {
            let gguf = Gguf::open(path)?;
            match gguf.get::<&str>("general.type")? {
                Some("adapter") => adapter::describe(path, base),
                _ => model::describe_file(gguf, path),
            }
        }
        start if start.get(8) == Some(&b'{') => adapter::describe(path, base),
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
        (false, false) => match inside(path)? {
            inside if inside.is_empty() => samples::describe(path, base),
            inside => inside.iter().try_for_each(|path| match path.is_dir() {
                true => folder(path, base),
                false => adapter::describe(path, base),
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
