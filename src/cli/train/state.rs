//! `run.json`: what the run in a folder is, and whether it came to its end.

use std::path::Path;

use rullama_train::files;
use serde_json::{Value, json};

const FILE: &str = "run.json";

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is running, or was killed.
    Running,
    /// It was asked to stop, or could not go on.
    Stopped,
    /// Its adapter is written.
    Finished,
}

impl Status {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Status::Running => "running",
            Status::Stopped => "stopped",
            Status::Finished => "finished",
        }
    }
}

/// Writes the file: `facts` and the status.
pub fn write(dir: &Path, status: Status, facts: &Value) -> Result<(), files::Error> {
    let mut object = json!({ "status": status.name(), "version": env!("CARGO_PKG_VERSION") });
    if let (Value::Object(object), Value::Object(facts)) = (&mut object, facts) {
        object.extend(facts.clone());
    }
    let text = serde_json::to_string_pretty(&object).expect("text keys") + "\n";
    files::write_atomic(&dir.join(FILE), text.as_bytes())
}

/// Whether the run in `dir` came to its end.
pub fn is_finished(dir: &Path) -> bool {
    let text = std::fs::read(dir.join(FILE)).unwrap_or_default();
    let object: Value = serde_json::from_slice(&text).unwrap_or_default();
    object["status"] == Status::Finished.name()
}
