//! `--json` of commands whose text is for people: the lines are kept and become part of one object.

use std::io::Write;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

/// Lines with their labels; `None` while text is printed.
static KEPT: Mutex<Option<Vec<(String, String)>>> = Mutex::new(None);

/// From now on, lines are kept in place of being printed, and no progress is shown.
pub fn keep() {
    super::progress::silence(true);
    *KEPT.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
}

/// Keeps a line. False if lines are printed.
pub fn push(label: &str, text: &str) -> bool {
    match &mut *KEPT.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(lines) => {
            if !text.trim().is_empty() {
                lines.push((label.into(), text.into()));
            }
            true
        }
        None => false,
    }
}

/// Prints `object` with the kept lines as `report`, if lines are kept.
pub fn finish(mut object: Value) {
    let Some(lines) = KEPT.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    let mut last = String::new();
    let line = |(label, text): (String, String)| {
        // A line without a label continues the one before.
        if !label.is_empty() {
            last = label;
        }
        json!({ "label": last, "text": text })
    };
    object["report"] = lines.into_iter().map(line).collect();
    // A closed stdout is not an error.
    let _ = writeln!(std::io::stdout(), "{object}");
}
