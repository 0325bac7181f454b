//! Moves files between JavaScript and the library's in-memory file system.

use std::path::{Path, PathBuf};

use rullama_train::files;
use rullama_train::run::checkpoint::STATE;

use crate::types::{FileEntry, Problem};

/// Folder for adapters and checkpoints from JavaScript.
const GIVEN: &str = ".given";

/// Replaces all files by `files`.
pub fn fill(files: Vec<FileEntry>) {
    files::take(Path::new(""));
    files.into_iter().for_each(|file| files::put(Path::new(&file.path), file.bytes));
}

/// Removes and returns the files of a folder.
pub fn take(dir: &Path) -> Vec<FileEntry> {
    let entry = |(path, bytes): (PathBuf, Vec<u8>)| FileEntry { path: path.display().to_string(), bytes };
    files::take(dir).into_iter().map(entry).collect()
}

/// Stores an adapter: a folder with adapter_config.json, or one file. Returns its path.
pub fn adapter(given: Vec<FileEntry>) -> Result<PathBuf, Problem> {
    let path = |file: &FileEntry| Path::new(GIVEN).join("adapter").join(&file.path);
    let config = given.iter().find(|file| file.path.rsplit('/').next() == Some("adapter_config.json"));
    let place = match (config, &given[..]) {
        (Some(config), _) => path(config).parent().map(Path::to_owned),
        (None, [file]) => Some(path(file)),
        (None, _) => None,
    };
    let Some(place) = place else {
        let names: Vec<&str> = given.iter().map(|file| file.path.as_str()).collect();
        return Err(Problem::new(format!(
            "found {:?}, expected an adapter: a folder with adapter_config.json, or one file (.gguf, .safetensors)",
            names
        )));
    };
    given.into_iter().for_each(|file| files::put(&path(&file), file.bytes));
    Ok(place)
}

/// Stores the files of checkpoints. Returns the path of the newest one.
pub fn checkpoint(given: Vec<FileEntry>) -> Result<PathBuf, Problem> {
    let root = Path::new(GIVEN).join("checkpoint");
    given.into_iter().for_each(|file| files::put(&root.join(&file.path), file.bytes));
    let mut folders = vec![root];
    let mut newest: Option<(usize, PathBuf)> = None;
    while let Some(folder) = folders.pop() {
        let children = files::list(&folder).unwrap_or_default();
        folders.extend(children.iter().filter(|path| files::is_dir(path)).cloned());
        if children.iter().any(|path| path.file_name().is_some_and(|name| name == STATE)) {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let step = name.rsplit('-').next().and_then(|step| step.parse().ok()).unwrap_or(0);
            if newest.as_ref().is_none_or(|(newest, _)| step >= *newest) {
                newest = Some((step, folder));
            }
        }
    }
    let none = || Problem::new(format!("the files contain no checkpoint: {STATE} is missing"));
    newest.map(|(_, folder)| folder).ok_or_else(none)
}
