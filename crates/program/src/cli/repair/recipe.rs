//! The text of a recipe that repairs a model.

use std::path::Path;

use rullama_train::recipe::{SCHEMA_URL, toml_string};
use rullama_train::run::draft::{self, Fit};

use crate::cli::recipe_args::quoted;

/// Content of a recipe.
pub struct Draft<'a> {
    pub path: &'a Path,
    pub base: &'a str,
    pub teacher: &'a str,
    pub data: &'a Path,
    pub output: &'a Path,
    /// Whether the user gave the text.
    pub given: bool,
    pub fit: &'a Fit,
}

impl Draft<'_> {
    /// The command that compares base, adapter and teacher.
    pub fn eval(&self) -> String {
        let [recipe, output] = [self.path, self.output].map(|path| quoted(&path.to_string_lossy()));
        format!("rullama-train eval {recipe} --adapter {output}")
    }

    /// The recipe as TOML.
    pub fn text(&self) -> String {
        let [data, output] = [self.data, self.output].map(|path| toml_string(&path.to_string_lossy()));
        let [base, teacher] = [self.base, self.teacher].map(toml_string);
        let Fit { val_size, max_seq_len, epochs, accumulation, learning_rate, .. } = self.fit;
        let run = format!("rullama-train {}", quoted(&self.path.to_string_lossy()));
        let of = if self.given { "any text will do" } else { "the teacher wrote it, token by token" };
        format!(
            "#:schema {SCHEMA_URL}\n\
             # {base} learns from {teacher}: {summary}.\n#\n\
             #   {run}    # trains; the same command resumes a run that was stopped\n\
             #   {eval}    # divergence, agreement and perplexity of base, adapter and teacher\n#\n\
             # A task goes on from it: lora.init_from = {output} in the task's recipe. docs/distill.md of rullama-train has more.\n\
             \n[model]\nbase = {base}\n\
             \n[lora]\nrank = 16                          # a repair hardly depends on it\n\
             \n[data]\ntrain = {data}  # {of}\n\
             train_on = \"all\"\n\
             val_size = {val_size}                     # held out, to measure the divergence\n\
             max_seq_len = {max_seq_len}\n\
             overlong = \"truncate\"\n\
             \n[train]\nobjective = \"distill\"\n\
             epochs = {epochs}                           # about {steps} steps\n\
             gradient_accumulation_steps = {accumulation}\n\
             learning_rate = {learning_rate}\n\
             \n[distill]\nteacher = {teacher}\n\
             \n[output]\ndir = {output}\n\
             export = [\"peft\", \"gguf-lora\"]\n",
            summary = draft::summary(self.fit),
            eval = self.eval(),
            steps = self.fit.steps(),
        )
    }
}
