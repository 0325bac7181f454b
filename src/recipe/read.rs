//! Reads, checks and writes whole recipes.

use std::path::Path;

use super::error::absolute;
use super::source::{Source, text_of};
use super::{Model, Recipe, RecipeError, RewardKind, Syntax, Template, grpo, keys, sections};
use crate::base::Fingerprint;
use crate::data::dataset;
use crate::files;

impl Recipe {
    /// Reads a recipe file: JSON if its name ends in `.json`, otherwise TOML.
    ///
    /// `overrides` are pairs of `section.key` and value, as in the arguments of `--set`.
    pub fn read<S: AsRef<str>>(path: &Path, overrides: &[(S, S)]) -> Result<Recipe, RecipeError> {
        let (text, syntax) = text_of(path)?;
        Recipe::parse(&text, syntax, &path.display().to_string(), overrides)
    }

    /// Parses a recipe. Messages call it `name`. `overrides` are as in [`Recipe::read`].
    pub fn parse<S: AsRef<str>>(
        text: &str,
        syntax: Syntax,
        name: &str,
        overrides: &[(S, S)],
    ) -> Result<Recipe, RecipeError> {
        let parsed = Recipe::parse_sections(text, syntax, name, overrides);
        // The first line of a resolved recipe has the version of the program.
        let newer = text.strip_prefix(RESOLVED_BY).and_then(|rest| rest.split([':', '\n']).next());
        match newer.filter(|found| version(found) > version(env!("CARGO_PKG_VERSION"))) {
            Some(found) => {
                parsed.map_err(|error| RecipeError::Newer { found: found.into(), error: Box::new(error) })
            }
            None => parsed,
        }
    }

    fn parse_sections<S: AsRef<str>>(
        text: &str,
        syntax: Syntax,
        name: &str,
        overrides: &[(S, S)],
    ) -> Result<Recipe, RecipeError> {
        let source = Source::parse(text, syntax, name, overrides)?;
        keys::check(&source)?;
        let recipe = sections::all(&source)?;
        grpo::fits(&source, &recipe)?;
        Ok(recipe)
    }

    /// A recipe of defaults for the base `base`, for [`crate::run::finetune`]. It has no data files and no output folder.
    #[must_use]
    pub fn new(base: &str) -> Recipe {
        let required = "model.base = 'tiny'\ndata.train = '-'\noutput.dir = '-'";
        let recipe = Recipe::parse::<&str>(required, Syntax::Toml, "defaults", &[]);
        let mut recipe = recipe.expect("all required keys are set");
        recipe.model.base = base.into();
        recipe.data.train = Vec::new();
        recipe
    }

    /// The recipe as TOML. Parsing it gives an equal recipe.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a recipe has only tables and plain values")
    }

    /// [`Recipe::to_toml`] below a comment with the version of the program that filled in the defaults.
    pub fn to_resolved_toml(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        format!("{RESOLVED_BY}{version}: the recipe with every default filled in\n\n{}", self.to_toml())
    }

    /// A copy that requires the base to have this fingerprint.
    pub fn pinned(&self, fingerprint: &Fingerprint) -> Recipe {
        let model = Model { fingerprint: Some(fingerprint.clone()), ..self.model.clone() };
        Recipe { model, ..self.clone() }
    }

    /// Checks that the files that the recipe reads exist. The error shows the absolute path.
    pub fn check_files(&self) -> Result<(), RecipeError> {
        let data = self.data.train.iter().map(|p| ("data.train", p));
        let sources = self.data.sources.iter().map(|s| ("data.sources", &s.path));
        let valid = self.data.valid.iter().map(|p| ("data.valid", p));
        let template = match &self.data.template {
            Template::File(path) => Some(("data.template", path)),
            _ => None,
        };
        let init = self.lora.init_from.iter().map(|p| ("lora.init_from", &p.path));
        let schema = self.rewards.iter().filter_map(|reward| match &reward.kind {
            RewardKind::Json { schema, .. } => schema.as_ref().map(|path| ("rewards.schema", path)),
            _ => None,
        });
        let mut all = data.chain(sources).chain(valid).chain(template).chain(init).chain(schema);
        let is_missing = |path: &Path| {
            !files::exists(path) && !dataset::files::is_pattern(path) && !dataset::files::is_of_hub(path)
        };
        match all.find(|(_, path)| is_missing(path)) {
            Some((key, path)) => Err(RecipeError::NoFile { key, path: absolute(path) }),
            None => Ok(()),
        }
    }
}

/// Start of a resolved recipe; the version follows.
const RESOLVED_BY: &str = "# rullama-train ";

/// Splits `1.2.3` into numbers that can be compared. A part that is not a number counts as 0.
fn version(text: &str) -> Vec<u64> {
    text.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0)).collect()
}

/// Splits `section.key=value`, the argument of `--set`.
pub fn split_override(argument: &str) -> Result<(&str, &str), RecipeError> {
    let (key, value) =
        argument.split_once('=').ok_or_else(|| RecipeError::Override { argument: argument.to_owned() })?;
    Ok((key.trim(), value.trim()))
}
