//! `run.json`: facts about the run in a folder, and its status.

use std::path::Path;

use rullama_train::files;
use rullama_train::run::{Outcome, Status};
use serde_json::{Value, json};

use super::lock;

const FILE: &str = "run.json";

/// Writes the file: the status, then `facts`.
pub fn write(dir: &Path, status: Status, facts: &Value) -> Result<(), files::Error> {
    let mut object = json!({ "status": status.name(), "version": env!("CARGO_PKG_VERSION") });
    if let (Value::Object(object), Value::Object(facts)) = (&mut object, facts) {
        object.extend(facts.clone());
    }
    save(dir, &object)
}

fn save(dir: &Path, object: &Value) -> Result<(), files::Error> {
    let text = serde_json::to_string_pretty(object).expect("text keys") + "\n";
    files::write_atomic(&dir.join(FILE), text.as_bytes())
}

/// Whether a run has written into `dir`.
pub fn exists(dir: &Path) -> bool {
    dir.join(FILE).exists()
}

/// The facts about the run in `dir`; null if the file is missing or damaged.
pub fn read(dir: &Path) -> Value {
    let text = std::fs::read(dir.join(FILE)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Changes the status "running" to "interrupted".
pub fn interrupt(dir: &Path) {
    let mut object = read(dir);
    if object["status"] == Status::Running.name() {
        object["status"] = Status::Interrupted.name().into();
        // If it cannot be written, the next command that looks finds the same.
        let _ = save(dir, &object);
    }
}

/// [`read`], after the status of a run whose process is gone was corrected.
pub fn read_settled(dir: &Path) -> Value {
    if read(dir)["status"] == Status::Running.name() && lock::is_free(dir) {
        interrupt(dir);
    }
    read(dir)
}

/// The result of a run, as the file has it.
pub fn result(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Interrupted => "none",
        Outcome::Finished(_) => "exported",
        Outcome::Refused { .. } => "refused",
        Outcome::Unmoved => "unmoved",
    }
}

/// Whether the run in `dir` is over and has a result that another run must not replace.
pub fn is_finished(dir: &Path) -> bool {
    let run = read(dir);
    run["status"] == Status::Finished.name() && run["result"] != "unmoved"
}
