//! Dataset files: from paths, folders and patterns to files, and from files to samples.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::cache::{Cache, Entry};
use super::{Dataset, DatasetError, Notice, Options, Problem, What, parse};
use crate::data::tokenizer::Tokenizer;
use crate::files;

/// Extensions of files with samples. Compressed files have an additional extension from [`COMPRESSED`].
const ENDINGS: [&str; 5] = ["jsonl", "ndjson", "json", "parquet", "pq"];
const COMPRESSED: [&str; 2] = ["gz", "zst"];

/// Whether a path is a pattern such as `data/*.jsonl`. An existing file of that exact name is not a pattern.
pub fn is_pattern(path: &Path) -> bool {
    path.to_string_lossy().contains(['*', '?', '[']) && !files::exists(path)
}

/// The files that a path stands for, sorted by name: the file itself, the files in a folder and its subfolders, or the files
/// that match a pattern. Files in a folder that contain no samples are reported in a notice.
pub fn expand(path: &Path) -> Result<(Vec<PathBuf>, Option<Notice>), DatasetError> {
    let place = path.display().to_string();
    let mut skipped = Vec::new();
    let mut found = Vec::new();
    if is_pattern(path) {
        found = files::matching(&path.to_string_lossy()).map_err(|error| {
            let problem = match error.kind() {
                ErrorKind::InvalidInput => Problem::NoFiles(format!(
                    "invalid pattern: {error}; expected a pattern such as data/*.jsonl"
                )),
                _ => Problem::Read(error.to_string()),
            };
            problem.at(&place)
        })?;
        if found.is_empty() {
            return Err(Problem::NoFiles("no file matches this pattern".into()).at(place));
        }
    } else if files::is_dir(path) {
        walk(path, &mut found, &mut skipped)?;
        if found.is_empty() {
            let endings = ENDINGS.map(|ending| format!(".{ending}")).join(", ");
            let problem = format!(
                "the folder contains no samples; expected files that end in {endings}, optionally with .gz or .zst"
            );
            return Err(Problem::NoFiles(problem).at(place));
        }
    } else {
        found.push(path.to_owned());
    }
    let notice = (!skipped.is_empty()).then_some(Notice { place, what: What::Skipped(skipped) });
    Ok((found, notice))
}

/// Files in a folder, sorted by name. Hidden files are ignored.
fn walk(folder: &Path, found: &mut Vec<PathBuf>, skipped: &mut Vec<String>) -> Result<(), DatasetError> {
    let failed = |error: std::io::Error| Problem::Read(error.to_string()).at(folder.display().to_string());
    let paths = files::list(folder).map_err(failed)?;
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for path in paths.into_iter().filter(|path| !name(path).starts_with('.')) {
        if files::is_dir(&path) {
            walk(&path, found, skipped)?;
        } else if holds_samples(&path) {
            found.push(path);
        } else {
            skipped.push(name(&path));
        }
    }
    Ok(())
}

fn holds_samples(path: &Path) -> bool {
    let ending = |path: &Path| path.extension().map(|e| e.to_string_lossy().to_lowercase());
    let stem;
    let mut path = path;
    if ending(path).is_some_and(|e| COMPRESSED.contains(&e.as_str())) {
        stem = path.with_extension("");
        path = &stem;
    }
    ending(path).is_some_and(|e| ENDINGS.contains(&e.as_str()))
}

/// Reads a file, from the cache if possible. Stores the samples in the cache otherwise.
pub fn read(
    path: &Path,
    tokenizer: &Tokenizer,
    options: &Options,
    cache: Option<&Cache>,
) -> Result<Dataset, DatasetError> {
    let name = path.display().to_string();
    let bytes = files::read(path).map_err(|error| Problem::Read(error.to_string()).at(&name))?;
    let Some(cache) = cache.filter(|cache| cache.is_worth(bytes.len())) else {
        return parse(&bytes, &name, tokenizer, options);
    };
    let key = Cache::key(&bytes, tokenizer, options);
    let mut say = Vec::new();
    match cache.load(&key, &name) {
        Entry::Found(dataset) => return Ok(dataset),
        Entry::Missing => {}
        Entry::Broken(file) => {
            let file = file.display();
            say.push(format!("its cached tokens were damaged and have been rebuilt ({file})"));
        }
    }
    let mut dataset = parse(&bytes, &name, tokenizer, options)?;
    if let Err(error) = cache.store(&key, &dataset) {
        say.push(format!("its tokens cannot be cached: {error}"));
    }
    let notices = say.into_iter().map(|text| Notice { place: name.clone(), what: What::Cache(text) });
    dataset.notices.extend(notices);
    Ok(dataset)
}
