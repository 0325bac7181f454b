//! Other commands of this program, run for the page: `export` and `merge`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rullama_train::base::ollama;

use super::problem::Problem;

/// Runs this program with `arguments` in the folder `dir`, and returns what it printed.
pub fn run(arguments: &[OsString], dir: &Path) -> Result<String, Problem> {
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.args(arguments).current_dir(dir).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let error = errors.rfind("error: ").map_or(errors.trim(), |at| errors[at + 7..].trim());
    let name = arguments[0].to_string_lossy();
    Err(Problem::new(if error.is_empty() {
        format!("`{name}` failed: {}", output.status)
    } else {
        error.into()
    }))
}

/// The words of `export` for an adapter.
pub fn export(base: &str, adapter: &Path, to: &str, out: &Path) -> Vec<OsString> {
    let words =
        [("export".into(), adapter.into()), ("--to".into(), to.into()), ("--base".into(), base.into())];
    let words: Vec<(OsString, OsString)> = words.into();
    let words = words.into_iter().chain([("--out".into(), out.into())]);
    words.flat_map(|(word, value)| [word, value]).collect()
}

/// The words of `merge` for an adapter.
pub fn merge(base: &str, adapter: &Path, out: &Path, ollama: Option<&str>) -> Vec<OsString> {
    let mut words: Vec<OsString> =
        vec!["merge".into(), adapter.into(), "--base".into(), base.into(), "--out".into(), out.into()];
    words.extend(ollama.map(|name| OsString::from(format!("--ollama={name}"))));
    words
}

/// The place of a merged model in the folder `models`. Fails if the name is not one of Ollama's, or taken.
pub fn place(models: &Path, name: &str) -> Result<PathBuf, Problem> {
    ollama::full_name(name).map_err(|problem| Problem::new(format!("{name:?} {problem}")))?;
    let stem = super::folders::plain(&crate::cli::ollama::Target::file_stem(name));
    let folder = models.join(&stem);
    if folder.exists() {
        return Err(Problem::new(format!("{} exists; choose another name for the model", folder.display())));
    }
    Ok(folder.join(format!("{stem}.gguf")))
}

/// The files below a folder, by their paths from it.
pub fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for path in std::fs::read_dir(next).into_iter().flatten().flatten().map(|entry| entry.path()) {
            match path.strip_prefix(folder) {
                _ if path.is_dir() => folders.push(path),
                Ok(name) => found.push(name.to_string_lossy().replace('\\', "/")),
                Err(_) => {}
            }
        }
    }
    found.sort();
    found
}
