//! The recipe on the command line: its file, overrides of its keys, and the command that repeats both.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use rullama_train::files;
use rullama_train::recipe::{Recipe, split_override};

use super::pull;

/// A recipe and overrides of its keys.
#[derive(Args, Clone)]
pub struct RecipeArgs {
    /// Recipe file (TOML or JSON).
    pub recipe: PathBuf,
    /// Override a key of the recipe, for example --set train.learning_rate=2e-4; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
}

impl RecipeArgs {
    /// The recipe as it is in the file.
    pub fn of(recipe: PathBuf) -> RecipeArgs {
        RecipeArgs { recipe, overrides: Vec::new() }
    }

    /// Reads the recipe, checks that the files it names exist, and downloads what it names on the Hub.
    pub fn read(&self) -> Result<Recipe> {
        let recipe = self.parse()?;
        recipe.check_files()?;
        pull::recipe(&recipe)?;
        Ok(recipe)
    }

    /// Reads the recipe without checking its files.
    pub fn parse(&self) -> Result<Recipe> {
        refuse_other_files(&self.recipe)?;
        let split = |o: &String| split_override(o).map(|(k, v)| (k.to_string(), v.to_string()));
        let overrides = self.overrides.iter().map(split).collect::<Result<Vec<_>, _>>()?;
        Ok(Recipe::read(&self.recipe, &overrides)?)
    }

    /// The command that runs this recipe with these overrides and further `words`.
    pub fn command(&self, words: &[&str]) -> String {
        let mut command = format!("rullama-train {}", quoted(&self.recipe.to_string_lossy()));
        for setting in &self.overrides {
            command += &format!(" --set {}", quoted(setting));
        }
        for word in words {
            command += &format!(" {}", quoted(word));
        }
        command
    }

    /// The recipe with the override `key=value` in place of an earlier one of that key.
    pub fn with(&self, key: &str, value: impl std::fmt::Display) -> RecipeArgs {
        let mut changed = self.clone();
        changed.overrides.retain(|o| split_override(o).is_ok_and(|(k, _)| k != key));
        changed.overrides.push(format!("{key}={value}"));
        changed
    }
}

/// A word as a shell takes it: in quotes if it has other characters than those of plain names.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-./:=,@%+".contains(c);
    match word.chars().all(plain) && !word.is_empty() {
        true => word.into(),
        false if cfg!(windows) => format!("\"{}\"", word.replace('"', "\\\"")),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Extensions of samples.
const SAMPLES: [&str; 9] = ["jsonl", "ndjson", "csv", "tsv", "parquet", "txt", "md", "gz", "zst"];

/// Fails if the file is evidently something other than a recipe: samples, a model, an adapter or a folder.
fn refuse_other_files(path: &Path) -> Result<()> {
    let name = path.display();
    if path.is_dir() {
        let resolved = path.join("recipe.resolved.toml");
        if resolved.exists() {
            bail!("{name} is the folder of a run, expected a recipe; its recipe is {}", resolved.display());
        }
        bail!("{name} is a folder, expected a recipe; `rullama-train init` writes one");
    }
    let start = files::read_start(path, 512).unwrap_or_default();
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    let array = extension == "json" && start.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'[');
    if start.starts_with(b"GGUF") {
        bail!(
            "{name} is a model or an adapter, not a recipe; `rullama-train init --base {name}` writes a recipe"
        );
    }
    if extension == "safetensors" {
        bail!("{name} is an adapter, not a recipe; `rullama-train inspect {name}` describes it");
    }
    if path.exists() && (array || SAMPLES.contains(&extension.as_str())) {
        let name = quoted(&path.to_string_lossy());
        bail!(
            "{name} holds samples, not a recipe; `rullama-train init --data {name}` writes a recipe for them"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_can_be_pasted() {
        let args = RecipeArgs {
            recipe: "my recipe.toml".into(),
            overrides: vec!["train.epochs=3".into(), "eval.samples=[\"It's?\"]".into()],
        };
        if cfg!(unix) {
            let expected = r#"rullama-train 'my recipe.toml' --set train.epochs=3 --set 'eval.samples=["It'\''s?"]' --fresh"#;
            assert_eq!(args.command(&["--fresh"]), expected);
        }
        let more =
            RecipeArgs { recipe: "a.toml".into(), ..args }.with("eval.samples", "[]").with("train.epochs", 6);
        assert_eq!(more.overrides, ["eval.samples=[]", "train.epochs=6"]);
    }
}
