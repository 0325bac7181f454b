//! `rollouts.jsonl`: the completions that a run has drawn.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::Result;
use rullama_train::files::{self, GrowingFile};
use rullama_train::run::RolloutLine;

/// The file in the output folder.
pub const FILE: &str = "rollouts.jsonl";

/// Opens the file with the completions of the first `last` steps. Those of later ones are drawn again.
pub fn kept(dir: &Path, last: usize) -> Result<GrowingFile> {
    let path = dir.join(FILE);
    let text = match files::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        text => text?,
    };
    let is_kept = |line: &&str| serde_json::from_str::<RolloutLine>(line).is_ok_and(|line| line.step <= last);
    // A line that was cut by a kill is one of a later step.
    let kept: String = text.split_inclusive('\n').take_while(is_kept).collect();
    Ok(GrowingFile::create(path, kept.as_bytes())?)
}
