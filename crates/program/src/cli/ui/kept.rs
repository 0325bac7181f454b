//! Finished runs in the folder: any browser lists them, with the names that the page gave them.

use std::path::Path;
use std::time::UNIX_EPOCH;

use rullama_train::files;
use serde_json::{Map, Value, json};

use super::problem::Problem;
use crate::cli::train::run_file;

/// The page's description of a run, in its folder.
pub const ABOUT: &str = "page.json";
/// Longest description, in bytes.
const LONGEST: usize = 4 << 20;

/// The runs below `runs`: the page's description of each, or the name and the end of one that it has not described.
pub fn list(runs: &Path) -> Vec<Value> {
    let folders =
        std::fs::read_dir(runs).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir());
    let mut found: Vec<Value> = folders
        .filter_map(|entry| {
            let dir = entry.path();
            let id = entry.file_name().to_str()?.to_owned();
            let about = std::fs::read(dir.join(ABOUT)).ok();
            let about = about.and_then(|text| serde_json::from_slice::<Map<String, Value>>(&text).ok());
            let mut run = match about {
                Some(about) => about,
                None if run_file::read(&dir)["result"] == "exported" => Map::new(),
                None => return None,
            };
            let modified = entry.metadata().ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
            run.insert("id".into(), id.into());
            run.insert("modified".into(), modified.as_secs().into());
            Some(run.into())
        })
        .collect();
    found.sort_by_key(|run| std::cmp::Reverse(run["modified"].as_u64()));
    found
}

/// Writes the page's description of the run in `dir`.
pub fn keep(dir: &Path, text: &[u8]) -> Result<Value, Problem> {
    let wrong = |problem: String| Problem::new(format!("the description of the run{problem}"));
    if text.len() > LONGEST {
        return Err(wrong(format!(" has {} bytes; it may have {LONGEST}", text.len())));
    }
    serde_json::from_slice::<Map<String, Value>>(text)
        .map_err(|error| wrong(format!(": {error}; expected an object")))?;
    files::write_atomic(&dir.join(ABOUT), text).map_err(|error| Problem::new(error.to_string()))?;
    Ok(json!({}))
}
