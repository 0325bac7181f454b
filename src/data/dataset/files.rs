//! Dataset files: from paths, folders and patterns to files, and from files to samples.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::cache::{Cache, Entry};
use super::container::ending;
use super::{Dataset, DatasetError, Notice, Options, Problem, What, parse};
#[cfg(feature = "native")]
use crate::base::stores::{hub, listing};
use crate::data::compare::Supervision;
use crate::data::tokenizer::Tokenizer;
use crate::files;

/// Endings of files with samples. Compressed files end in `.gz` or `.zst` after that.
const ENDINGS: [&str; 8] = ["jsonl", "ndjson", "json", "csv", "tsv", "tab", "parquet", "pq"];
/// Endings of files that are one text each.
const TEXTS: [&str; 4] = ["txt", "md", "markdown", "text"];
/// Files that often lie among samples and are none.
const NO_SAMPLES: [&str; 16] = [
    "package.json",
    "package-lock.json",
    "tsconfig.json",
    "composer.json",
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "dataset_info.json",
    "dataset_infos.json",
    "trainer_state.json",
    "run.json",
    "metadata.json",
    "requirements.txt",
];

/// Whether a path is the name of a data set on the Hugging Face Hub.
pub fn is_of_hub(path: &Path) -> bool {
    let text = path.to_string_lossy();
    !files::exists(path)
        && ["hf:", "https://huggingface.co/", "https://hf.co/"].iter().any(|start| text.starts_with(start))
}

/// Whether a path is a pattern such as `data/*.jsonl`. An existing file of that exact name is not a pattern.
pub fn is_pattern(path: &Path) -> bool {
    path.to_string_lossy().contains(['*', '?', '[']) && !files::exists(path) && !is_of_hub(path)
}

/// The files that a path stands for, sorted by name: the file itself, the files in a folder and its subfolders, or the files
/// that match a pattern; `hf:ORG/NAME` stands for a data set in the Hugging Face cache. Files in a folder that contain no samples are reported in a notice.
pub fn expand(path: &Path) -> Result<(Vec<PathBuf>, Option<Notice>), DatasetError> {
    let place = path.display().to_string();
    #[cfg(feature = "native")]
    if let Some(name) = hub::Name::parse(&place) {
        let files = name.and_then(|name| listing::cached_samples(&name));
        return files.map(|(_, files)| (files, None)).map_err(|problem| Problem::NoFiles(problem).at(place));
    }
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
        let mut texts = Vec::new();
        walk(path, &mut found, &mut texts, &mut skipped)?;
        if found.is_empty() {
            found = texts;
        } else {
            skipped.extend(texts.iter().map(|path| name_of(path)));
        }
        if found.is_empty() {
            let endings =
                ENDINGS.iter().chain(&TEXTS).map(|e| format!(".{e}")).collect::<Vec<_>>().join(", ");
            let problem = format!(
                "the folder contains no samples; expected files that end in {endings}, optionally with .gz or .zst"
            );
            return Err(Problem::NoFiles(problem).at(place));
        }
    } else {
        found.push(path.to_owned());
    }
    skipped.sort();
    let notice = (!skipped.is_empty()).then_some(Notice { place, what: What::Skipped(skipped) });
    Ok((found, notice))
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Files in a folder, sorted by name. Hidden files are ignored. Files with texts are samples only if there are no others.
fn walk(
    folder: &Path,
    found: &mut Vec<PathBuf>,
    texts: &mut Vec<PathBuf>,
    skipped: &mut Vec<String>,
) -> Result<(), DatasetError> {
    let failed = |error: std::io::Error| Problem::Read(error.to_string()).at(folder.display().to_string());
    let paths = files::list(folder).map_err(failed)?;
    check_saved_to_disk(folder, &paths)?;
    for path in paths.into_iter().filter(|path| !name_of(path).starts_with('.')) {
        if files::is_dir(&path) {
            walk(&path, found, texts, skipped)?;
            continue;
        }
        let (name, ending) = (name_of(&path).to_lowercase(), ending(&path).unwrap_or_default());
        let about = ["readme", "license", "licence", "changelog"].iter().any(|start| name.starts_with(start));
        if NO_SAMPLES.contains(&name.as_str()) {
            skipped.push(name_of(&path));
        } else if ENDINGS.contains(&ending.as_str()) {
            found.push(path);
        } else if TEXTS.contains(&ending.as_str()) && !about {
            texts.push(path);
        } else {
            skipped.push(name_of(&path));
        }
    }
    Ok(())
}

/// Fails for a folder that Hugging Face's `save_to_disk` wrote.
fn check_saved_to_disk(folder: &Path, paths: &[PathBuf]) -> Result<(), DatasetError> {
    let has = |name: &str| paths.iter().any(|path| name_of(path) == name);
    let arrow = paths.iter().any(|path| path.extension().is_some_and(|e| e == "arrow"));
    let split = match (has("dataset_dict.json"), has("state.json") && arrow) {
        (true, _) => "['train']",
        (_, true) => "",
        _ => return Ok(()),
    };
    let shown = folder.display().to_string();
    let target = format!("{}.parquet", shown.trim_end_matches(['/', '\\']));
    let problem = format!(
        "the folder was written by save_to_disk of Hugging Face datasets, as Arrow files, which are not read; convert it: \
         python -c \"from datasets import load_from_disk; load_from_disk('{shown}'){split}.to_parquet('{target}')\""
    );
    Err(Problem::NoFiles(problem).at(shown))
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
    // The columns of prompts are not tokens.
    let keeps = options.supervision != Supervision::Prompts;
    let Some(cache) = cache.filter(|cache| keeps && cache.is_worth(bytes.len())) else {
        return parse(&bytes, &name, tokenizer, options);
    };
    let key = Cache::key(&name, &bytes, tokenizer, options);
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
