//! `pull`, and the download of what a recipe or an option names on the Hugging Face Hub.

use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;
use rullama_train::base::stores::hub::{self, Name};
use rullama_train::base::stores::listing;
use rullama_train::data::dataset::files::is_of_hub;
use rullama_train::hub::{self as client, Fetched};
use rullama_train::recipe::Recipe;
use serde_json::{Value, json};

use super::output;
use super::output::progress::Progress;

/// Options of `pull`.
#[derive(Args)]
pub struct PullArgs {
    /// A repository of the Hugging Face Hub: hf:ORG/REPO:TYPE or hf:ORG/REPO/FILE, with @REVISION behind the repository if wanted.
    name: String,
    /// The repository is a data set: hf:ORG/NAME:SPLIT or hf:ORG/NAME/FILE.
    #[arg(long)]
    dataset: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Downloads a model or a data set, or its newest revision.
pub fn run(args: &PullArgs) -> Result<()> {
    let text = if args.name.contains(':') { args.name.clone() } else { format!("hf:{}", args.name) };
    let name = Name::parse(&text).or_else(|| Name::parse(&format!("hf:{}", args.name)));
    let Some(name) = name else {
        bail!("{} is not a name of the Hugging Face Hub; write hf:ORG/REPO:TYPE", args.name)
    };
    let name = name.map_err(|problem| anyhow::anyhow!("{} {problem}", args.name))?;
    let fetched = if args.dataset { dataset(&name)? } else { model(&name)? };
    if args.json {
        output::text(described(&name, &fetched.commit, &fetched.files));
        return Ok(());
    }
    if let Some(notice) = &fetched.notice {
        output::line("notice", notice);
    }
    output::line("revision", &fetched.commit);
    for file in &fetched.files {
        output::line("file", file.display());
    }
    let next = if args.dataset {
        format!("data.train = \"{name}\" in a recipe")
    } else {
        format!("rullama-train init --base {name}")
    };
    output::line("next", next);
    Ok(())
}

/// A name with the commit and the digests that it stands for.
fn described(name: &Name, commit: &str, files: &[std::path::PathBuf]) -> Value {
    let file = |path: &std::path::PathBuf| {
        let bytes = path.metadata().map(|found| found.len()).ok();
        json!({ "path": path, "bytes": bytes, "sha256": listing::digest_of(path) })
    };
    json!({ "name": name.to_string(), "revision": commit, "files": files.iter().map(file).collect::<Vec<_>>() })
}

fn model(name: &Name) -> Result<Fetched> {
    shown(|progress| client::model(name, progress))
}

fn dataset(name: &Name) -> Result<Fetched> {
    shown(|progress| client::dataset(name, progress))
}

/// Shows the progress of a download.
fn shown(
    fetch: impl FnOnce(&mut dyn FnMut(&client::Progress)) -> Result<Fetched, client::Error>,
) -> Result<Fetched> {
    const MIB: u64 = 1 << 20;
    let mut bar: Option<(String, Progress)> = None;
    let fetched = fetch(&mut |at| {
        if bar.as_ref().is_none_or(|(file, _)| file != at.file) {
            let [number, count] = at.number;
            let several = if count > 1 { format!(" {number}/{count}") } else { String::new() };
            let size = output::bytes(at.bytes[1]);
            let name = at.file.rsplit('/').next().unwrap_or(at.file);
            let name = format!("downloading{several} {name}, {size}, MiB");
            bar = Some((at.file.into(), Progress::new(name, at.bytes[1].div_ceil(MIB) as usize)));
        }
        if let Some((_, bar)) = &bar {
            bar.set_position((at.bytes[0] / MIB) as usize);
        }
    });
    if let Some((_, bar)) = bar {
        bar.finish_and_clear();
    }
    Ok(fetched?)
}

/// Downloads the base `spec` if it names one of the Hub that is not on this machine.
pub fn base(spec: &str) -> Result<()> {
    if Path::new(spec).is_file() {
        return Ok(());
    }
    let Some(name) = Name::parse(spec) else { return Ok(()) };
    let name = name.map_err(|problem| anyhow::anyhow!("{spec}: {problem}"))?;
    if hub::cached_model(&name).is_err() {
        notice(&model(&name).with_context(|| spec.to_owned())?);
    }
    Ok(())
}

/// Downloads the samples `path` if it names a data set of the Hub that is not on this machine.
pub fn samples(path: &Path) -> Result<()> {
    if !is_of_hub(path) {
        return Ok(());
    }
    let text = path.to_string_lossy();
    let Some(name) = Name::parse(&text) else { return Ok(()) };
    let name = name.map_err(|problem| anyhow::anyhow!("{text}: {problem}"))?;
    if listing::cached_samples(&name).is_err() {
        notice(&dataset(&name).with_context(|| text.into_owned())?);
    }
    Ok(())
}

fn notice(fetched: &Fetched) {
    if let Some(notice) = &fetched.notice {
        eprintln!("note: {notice}");
    }
}

/// The name of the teacher in a recipe.
fn teacher(recipe: &Recipe) -> Option<&str> {
    recipe.distill.as_ref().map(|keys| keys.teacher.as_str())
}

/// Downloads the models and the samples that `recipe` names.
pub fn recipe(recipe: &Recipe) -> Result<()> {
    base(&recipe.model.base)?;
    teacher(recipe).map_or(Ok(()), base)?;
    let data = &recipe.data;
    let sources = data.sources.iter().map(|source| &source.path);
    data.train.iter().chain(&data.valid).chain(sources).try_for_each(|path| samples(path))
}

/// Commits and digests that the names of the Hub in `recipe` stand for on this machine.
pub fn revisions(recipe: &Recipe) -> Value {
    let mut found = Vec::new();
    for model in [recipe.model.base.as_str()].into_iter().chain(teacher(recipe)) {
        let Some(Ok(name)) = Name::parse(model) else { continue };
        let Ok(path) = hub::cached_model(&name) else { continue };
        found.push(described(&name, &listing::commit_of(&path).unwrap_or_default(), &[path]));
    }
    let data = &recipe.data;
    let sources = data.sources.iter().map(|source| &source.path);
    for path in data.train.iter().chain(&data.valid).chain(sources) {
        if let Some(Ok(name)) = Name::parse(&path.to_string_lossy())
            && let Ok((commit, files)) = listing::cached_samples(&name)
        {
            found.push(described(&name, &commit, &files));
        }
    }
    found.into()
}

/// The recipe with the commits that its names of the Hub stand for.
pub fn pinned(recipe: &Recipe) -> Recipe {
    let mut pinned = recipe.clone();
    let teacher = pinned.distill.as_mut().map(|keys| &mut keys.teacher);
    for model in teacher.into_iter().chain([&mut pinned.model.base]) {
        if let Some(Ok(name)) = Name::parse(model)
            && let Ok(path) = hub::cached_model(&name)
            && let Some(commit) = listing::commit_of(&path)
        {
            *model = name.at(&commit).to_string();
        }
    }
    let data = &mut pinned.data;
    let sources = data.sources.iter_mut().map(|source| &mut source.path);
    for path in data.train.iter_mut().chain(&mut data.valid).chain(sources) {
        if let Some(Ok(name)) = Name::parse(&path.to_string_lossy())
            && let Ok((commit, _)) = listing::cached_samples(&name)
        {
            *path = name.at(&commit).to_string().into();
        }
    }
    pinned
}
