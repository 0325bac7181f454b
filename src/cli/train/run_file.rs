//! `run.json`: facts about the run in a folder, and its status.

use std::path::Path;

use rullama_train::files;
use rullama_train::run::Status;
use serde_json::{Value, json};

const FILE: &str = "run.json";

/// Writes the file: the status, then `facts`.
pub fn write(dir: &Path, status: Status, facts: &Value) -> Result<(), files::Error> {
    let mut object = json!({ "status": status.name(), "version": env!("CARGO_PKG_VERSION") });
    if let (Value::Object(object), Value::Object(facts)) = (&mut object, facts) {
        object.extend(facts.clone());
    }
    let text = serde_json::to_string_pretty(&object).expect("text keys") + "\n";
    files::write_atomic(&dir.join(FILE), text.as_bytes())
}

/// Whether the run in `dir` is over.
pub fn is_finished(dir: &Path) -> bool {
    let text = std::fs::read(dir.join(FILE)).unwrap_or_default();
    let object: Value = serde_json::from_slice(&text).unwrap_or_default();
    object["status"] == Status::Finished.name()
}
