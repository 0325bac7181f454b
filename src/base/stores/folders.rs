//! Stores that are plain folders of GGUF files: those of LM Studio, Jan and llama.cpp, and `RULLAMA_MODELS`.

use std::path::{Path, PathBuf};

use super::{Store, below};

/// The stores, with their folders on this machine.
pub fn stores() -> Vec<Store> {
    let own = std::env::var_os("RULLAMA_MODELS").unwrap_or_default();
    let own = std::env::split_paths(&own).filter(|path| !path.as_os_str().is_empty()).collect();
    vec![
        Store { prefix: "lmstudio", title: "LM Studio", folders: lm_studio() },
        Store { prefix: "jan", title: "Jan", folders: jan() },
        Store { prefix: "llama.cpp", title: "llama.cpp", folders: llama_cpp() },
        Store { prefix: "models", title: "RULLAMA_MODELS", folders: own },
    ]
}

/// The models of a store, by their names: the prefix, and the path from the folder without `.gguf`.
pub fn models(prefix: &str, folders: &[PathBuf]) -> Vec<(String, PathBuf)> {
    let named = |(path, file): (String, PathBuf)| {
        let stem = &path[..path.len() - ".gguf".len()];
        // Jan calls every file `model.gguf`.
        let stem = if prefix == "jan" { stem.strip_suffix("/model").unwrap_or(stem) } else { stem };
        (format!("{prefix}:{stem}"), file)
    };
    let mut found: Vec<(String, PathBuf)> =
        folders.iter().flat_map(|folder| below(folder)).map(named).collect();
    if prefix == "jan" {
        found.extend(folders.iter().flat_map(|folder| imported(folder)));
    }
    found
}

/// Models that Jan uses where they are: `model.yml` in a folder of its own names the file.
fn imported(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for (name, path) in descriptions(folder, "", 4) {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.trim().strip_prefix("model_path:"));
        let file = PathBuf::from(line.unwrap_or_default().trim().trim_matches(['"', '\'']));
        if file.is_absolute() && file.is_file() && !file.starts_with(folder) {
            found.push((format!("jan:{name}"), file));
        }
    }
    found
}

/// Files `model.yml` below a folder, by the path of their folder.
fn descriptions(folder: &Path, above: &str, depth: usize) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
        if path.is_dir() && depth > 0 {
            let above = if above.is_empty() { name } else { format!("{above}/{name}") };
            found.extend(descriptions(&path, &above, depth - 1));
        } else if name == "model.yml" && !above.is_empty() {
            found.push((above.into(), path));
        }
    }
    found
}

/// LM Studio's folder of models: the one of its settings, or that in its home folder, which a file may name.
fn lm_studio() -> Vec<PathBuf> {
    let Some(user) = std::env::home_dir() else { return Vec::new() };
    let pointer = std::fs::read_to_string(user.join(".lmstudio-home-pointer")).unwrap_or_default();
    let homes = [pointer.trim().into(), user.join(".lmstudio"), user.join(".cache").join("lm-studio")];
    let homes: Vec<PathBuf> = homes.into_iter().filter(|home: &PathBuf| home.is_absolute()).collect();
    let chosen = homes.iter().find_map(|home| {
        let settings = std::fs::read(home.join("settings.json")).ok()?;
        let settings: serde_json::Value = serde_json::from_slice(&settings).ok()?;
        settings["downloadsFolder"].as_str().map(PathBuf::from)
    });
    let mut folders: Vec<PathBuf> =
        chosen.into_iter().chain(homes.iter().map(|home| home.join("models"))).collect();
    dedup(&mut folders);
    folders
}

/// Jan's folders of models.
fn jan() -> Vec<PathBuf> {
    let data = [dirs::data_dir(), dirs::config_dir()];
    let mut folders: Vec<PathBuf> =
        data.into_iter().flatten().map(|folder| folder.join("Jan/data/llamacpp/models")).collect();
    folders.extend(std::env::home_dir().map(|home| home.join("jan/models")));
    dedup(&mut folders);
    folders
}

/// llama.cpp's cache of downloads.
fn llama_cpp() -> Vec<PathBuf> {
    let chosen = std::env::var_os("LLAMA_CACHE").filter(|path| !path.is_empty()).map(PathBuf::from);
    chosen.or_else(|| Some(dirs::cache_dir()?.join("llama.cpp"))).into_iter().collect()
}

fn dedup(folders: &mut Vec<PathBuf>) {
    let mut seen = std::collections::HashSet::new();
    folders.retain(|folder| seen.insert(folder.clone()));
}
