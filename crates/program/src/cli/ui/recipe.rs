//! The page's recipe, limited to the files that the page has sent and the chosen folders.

use std::path::{Path, PathBuf};

use rullama_train::adapter::Format;
use rullama_train::data::dataset::files as dataset_files;
use rullama_train::recipe::{Cache, Recipe, Reward, RewardKind, Syntax, Template, toml_string};
use rullama_train::run::RunError;
use rullama_train::words;

use super::folders::{Folders, is_relative};
use super::problem::Problem;

/// Maximum size of a recipe, in bytes.
const LONGEST: usize = 1 << 20;

/// A recipe that may run.
pub struct Allowed {
    /// The recipe as it is written to the folder of the run.
    pub recipe: Recipe,
    /// The recipe with the paths of the files that the page has sent.
    pub rooted: Recipe,
    /// Overrides that make the program read the page's text as `recipe`.
    pub overrides: Vec<(String, String)>,
}

/// Reads a recipe for `base` whose files are in the folder `sent`. `out` is the folder of the run.
pub fn read(text: &str, base: &str, sent: &Path, out: &Path, folders: &Folders) -> Result<Allowed, Problem> {
    if text.len() > LONGEST {
        let most = words::bytes(LONGEST as u64);
        return Err(Problem::new(format!("the recipe is larger than {most}; shorten it")));
    }
    let mut overrides = vec![
        ("model.base".into(), toml_string(base)),
        ("output.dir".into(), toml_string(&out.to_string_lossy())),
    ];
    let parse = |overrides: &[(String, String)]| Recipe::parse(text, Syntax::Toml, "recipe", overrides);
    let mut recipe = parse(&overrides)?;
    // The page keeps the adapter in this format.
    if !recipe.output.export.contains(&Format::Peft) {
        let mut formats = vec![Format::Peft];
        formats.extend(&recipe.output.export);
        let names: Vec<String> = formats.iter().map(|format| toml_string(format.name())).collect();
        overrides.push(("output.export".into(), format!("[{}]", names.join(", "))));
        recipe = parse(&overrides)?;
    }
    if recipe.log.hook.is_some() {
        let message =
            "log.hook: the page may not run commands; remove the key, or train with the command line";
        return Err(Problem::of_key("log.hook", message));
    }
    let judges = |reward: &Reward| matches!(reward.kind, RewardKind::Command { .. } | RewardKind::Url(_));
    if let Some(reward) = recipe.rewards.iter().find(|reward| judges(reward)) {
        let message = format!(
            "rewards: the page may neither run commands nor send texts to a judge; remove the reward \"{}\", or train with the command line",
            reward.name()
        );
        return Err(Problem::of_key("rewards", message));
    }
    if let Cache::Folder(_) = recipe.data.cache {
        let message = "data.cache: the page may not choose this folder; write true or false";
        return Err(Problem::of_key("data.cache", message));
    }
    let mut rooted = recipe.clone();
    for (key, path) in paths(&mut rooted) {
        *path = allowed(key, path, sent, folders)?;
    }
    Ok(Allowed { recipe, rooted, overrides })
}

/// Every path that a recipe reads, with its key.
fn paths(recipe: &mut Recipe) -> Vec<(&'static str, &mut PathBuf)> {
    let data = &mut recipe.data;
    let mut all: Vec<(&'static str, &mut PathBuf)> =
        data.train.iter_mut().map(|path| ("data.train", path)).collect();
    all.extend(data.sources.iter_mut().map(|source| ("data.sources", &mut source.path)));
    all.extend(data.valid.iter_mut().map(|path| ("data.valid", path)));
    all.extend(recipe.lora.init_from.iter_mut().map(|adapter| ("lora.init_from", &mut adapter.path)));
    if let Template::File(path) = &mut data.template {
        all.push(("data.template", path));
    }
    all.extend(recipe.rewards.iter_mut().filter_map(|reward| match &mut reward.kind {
        RewardKind::Json { schema, .. } => schema.as_mut().map(|path| ("rewards.schema", path)),
        _ => None,
    }));
    all
}

/// The place of a path: among the sent files if it is relative, in the chosen folders if it is absolute.
fn allowed(key: &'static str, path: &Path, sent: &Path, folders: &Folders) -> Result<PathBuf, Problem> {
    let place = sent.join(path);
    if is_relative(path) && (place.exists() || dataset_files::is_pattern(&place)) {
        return Ok(place);
    }
    let refused = || {
        let message = format!(
            "{key}: {} is neither among the files that were picked nor, as an absolute path, in {}",
            path.display(),
            folders.names()
        );
        Problem::of_key(key, message)
    };
    // The part of a pattern before its first wildcard.
    let root = path.ancestors().find(|part| !part.to_string_lossy().contains(['*', '?', '[']));
    let root = if dataset_files::is_pattern(path) { root } else { Some(path) };
    if !path.is_absolute() || root.and_then(|root| folders.inside(root)).is_none() {
        return Err(refused());
    }
    let found = match key {
        "lora.init_from" | "data.template" | "rewards.schema" => vec![path.to_owned()],
        // A folder or a pattern stands for several files.
        _ => {
            dataset_files::expand(path)
                .map_err(|error| Problem::from(anyhow::Error::from(RunError::from(error))))?
                .0
        }
    };
    match found.iter().all(|file| folders.inside(file).is_some()) {
        true => Ok(path.to_owned()),
        false => Err(refused()),
    }
}
