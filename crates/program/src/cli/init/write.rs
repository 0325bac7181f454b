//! The text of a recipe file, with the commands that use it.

use std::path::{Path, PathBuf};

use rullama_train::recipe::SCHEMA_URL;
use rullama_train::run::draft::{self, Fit, Names};

/// Content of a recipe.
pub struct Recipe<'a> {
    pub path: &'a Path,
    pub base: &'a str,
    pub data: &'a Path,
    pub output: &'a PathBuf,
    pub system: Option<&'a str>,
    pub prompts: &'a [String],
    pub fit: &'a Fit,
}

impl Recipe<'_> {
    /// The commands from here to the adapter in use, with their effects. `ollama`: whether the base is a model of Ollama's.
    pub fn next(&self, ollama: bool) -> Vec<(String, &'static str)> {
        let (path, output) = (self.path.to_string_lossy(), self.output.to_string_lossy());
        let [name, run, base] = [&*path, &*output, self.base].map(as_argument);
        let mut commands = vec![
            (
                format!("rullama-train check {name}"),
                "prepares everything: lengths, memory, a sample with its loss tokens",
            ),
            (
                format!("rullama-train check {name} --lr"),
                "tries learning rates, in up to 60 steps, and proposes one",
            ),
            (format!("rullama-train {name}"), "trains; the same command resumes a run that was stopped"),
        ];
        if ollama {
            let model = self.ollama_name();
            let merge = format!("rullama-train merge {run} --base {base} --ollama {model}");
            commands.push((merge, "puts the result into Ollama"));
            commands.push((format!("ollama run {model}"), "talks to it"));
        } else {
            commands.push((
                format!("rullama-train chat {base} --adapter {run} --compare"),
                "talks to base and adapter",
            ));
        }
        commands
    }

    /// The name of the recipe as Ollama accepts it.
    fn ollama_name(&self) -> String {
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
        let fits = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
        let name: String = stem.chars().map(fits).collect();
        let name = name.trim_start_matches(['-', '.']);
        if name.is_empty() { "mine".into() } else { name.into() }
    }

    /// The recipe as TOML.
    pub fn text(&self, ollama: bool) -> String {
        let (train, output) = (self.data.to_string_lossy(), self.output.to_string_lossy());
        let names = Names { base: self.base, train: &[&train], output: &output, system: self.system };
        self.header(ollama) + &draft::text(self.fit, &names, self.prompts)
    }

    /// The comment at the start.
    fn header(&self, ollama: bool) -> String {
        let commands = self.next(ollama);
        let width = commands.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
        let commands =
            commands.iter().map(|(command, effect)| format!("#   {command:<width$}    # {effect}\n"));
        format!(
            "#:schema {SCHEMA_URL}\n# {}.\n#\n{}#\n# recipes/chat.toml of rullama-train documents every key.\n",
            draft::summary(self.fit),
            commands.collect::<String>()
        )
    }
}

/// A word of a command line, in quotes if a shell would split it.
fn as_argument(text: &str) -> String {
    let plain = text.chars().all(|c| c.is_alphanumeric() || "-_./:\\".contains(c));
    if plain { text.to_owned() } else { format!("\"{text}\"") }
}
