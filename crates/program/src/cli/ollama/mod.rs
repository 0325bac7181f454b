//! Ollama on this machine: the Modelfile of a merged model, and `ollama create`.

pub mod modelfile;

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};
use rullama_train::base::ollama;

use super::output;
use super::recipe_args::quoted;

const PROGRAM: &str = "ollama";

/// A model to create in Ollama.
pub struct Target {
    name: String,
    /// Whether the program `ollama` is there.
    installed: bool,
}

impl Target {
    /// Checks, before any work, that the model can be created. `setting` is the option or key that named it, and `force` allows
    /// to replace an existing model.
    ///
    /// Fails if the name is not one of Ollama's, if Ollama's server does not answer, or if the model exists. It is no error if
    /// `ollama` is not installed: [`Target::create`] then prints the command.
    pub fn check(setting: &str, name: &str, force: Option<&str>) -> Result<Target> {
        let full =
            ollama::full_name(name).map_err(|problem| anyhow::anyhow!("{setting} {name:?} {problem}"))?;
        let Some(listed) = call(&["list"])? else {
            return Ok(Target { name: name.into(), installed: false });
        };
        if !listed.status.success() {
            bail!(
                "{setting} {name}: Ollama's server does not answer ({}); start it with `ollama serve` or from its app, or \
                 remove {setting}",
                last_line(&listed)
            );
        }
        let text = String::from_utf8_lossy(&listed.stdout);
        let exists = text
            .lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().next())
            .any(|found| ollama::full_name(found).is_ok_and(|found| found.eq_ignore_ascii_case(&full)));
        match force {
            Some(advice) if exists => {
                bail!("{setting} {name}: Ollama already has this model; choose another name, or {advice}")
            }
            _ => Ok(Target { name: name.into(), installed: true }),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of the folder and file that a merged model has unless a path is given.
    pub fn file_stem(name: &str) -> String {
        let last = name.rsplit('/').next().unwrap_or(name);
        last.strip_suffix(":latest").unwrap_or(last).replace(':', "-")
    }

    /// Creates the model from a Modelfile. Without the program, prints how.
    pub fn create(&self, modelfile: &Path, say: &output::Say) -> Result<()> {
        let command = format!("ollama create {} -f {}", self.name, quoted(&modelfile.to_string_lossy()));
        if !self.installed {
            say("ollama", format!("not installed here; where it is, run: {command}"));
            return Ok(());
        }
        let spinner = output::spinner("ollama create");
        let modelfile =
            modelfile.to_str().context("the path of the Modelfile is not UTF-8; choose another --out")?;
        let created = call(&["create", &self.name, "-f", modelfile])?;
        spinner.finish_and_clear();
        match created {
            Some(created) if created.status.success() => {}
            Some(created) => bail!(
                "`{command}` failed: {}; the merged file and its Modelfile are written, so run that command again when it can work",
                last_line(&created)
            ),
            None => bail!("`ollama` is no longer on the PATH; the merged model was written, run `{command}`"),
        }
        say("ollama", format!("created {}", self.name));
        say("next", format!("ollama run {}", self.name));
        Ok(())
    }
}

/// Whether `ollama` is installed.
pub fn is_installed() -> bool {
    call(&["--version"]).is_ok_and(|found| found.is_some())
}

/// Runs `ollama` with `arguments`; `None` if it is not installed.
fn call(arguments: &[&str]) -> Result<Option<Output>> {
    match Command::new(PROGRAM).args(arguments).stdin(Stdio::null()).output() {
        Ok(output) => Ok(Some(output)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot run `ollama {}`", arguments.join(" "))),
    }
}

/// The last line of what a program wrote to stderr: its error.
fn last_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    match text.lines().map(str::trim).rfind(|line| !line.is_empty()) {
        Some(line) => line.trim_start_matches("Error: ").into(),
        None => output.status.to_string(),
    }
}
