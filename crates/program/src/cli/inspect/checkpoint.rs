//! `inspect` for checkpoints and output folders of runs.

use std::path::{Path, PathBuf};

use anyhow::Result;
use rullama_train::run::checkpoint;
use serde_json::Value;

use crate::cli::output;
use crate::cli::train::run_file;

/// Describes a checkpoint. A damaged one is an error that says what is wrong.
pub fn describe(path: &Path) -> Result<()> {
    let found = checkpoint::inspect(path)?;
    let step = output::grouped(found.step);
    let steps = output::grouped(found.steps);
    output::line("checkpoint", format_args!("{}: after step {step} of {steps}, intact", path.display()));
    let skipped = match found.step - (found.updates as usize).min(found.step) {
        0 => String::new(),
        n => format!(", {} skipped", output::count(n, "step")),
    };
    let best =
        found.best_step.map_or(String::new(), |step| format!("; the best evaluation was at step {step}"));
    output::line(
        "progress",
        format_args!("{}{skipped}{best}", output::count(found.updates as usize, "update")),
    );
    output::line(
        "written",
        format_args!("by rullama-train {}, {}", found.version, output::bytes(found.bytes)),
    );
    let identity = &found.identity;
    for (what, digest) in [
        ("base", &identity.base),
        ("tokenizer", &identity.tokenizer),
        ("training samples", &identity.train),
        ("validation samples", &identity.validation),
    ] {
        output::line("digest", format_args!("{what} {digest}"));
    }
    Ok(())
}

/// Describes the output folder of a run.
pub fn run_folder(path: &Path, checkpoints: &[(usize, PathBuf)]) -> Result<()> {
    // If it is missing or damaged, the checkpoints are still listed.
    let run = run_file::read_settled(path);
    let status = run["status"].as_str().unwrap_or("unknown status");
    let step = match (run["step"].as_u64(), run["steps"].as_u64()) {
        (Some(step), Some(steps)) => format!(", after step {step} of {steps}"),
        (None, Some(steps)) => format!(", {}", output::count(steps as usize, "step")),
        _ => String::new(),
    };
    output::line("run", format_args!("{}: {status}{step}", path.display()));
    for changed in run["changes"].as_array().into_iter().flatten() {
        let changes: Vec<&str> =
            changed["changes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        output::line("changed", format_args!("after step {}: {}", changed["step"], changes.join("; ")));
    }
    for (key, label) in [("base", "base"), ("device", "device")] {
        if let Some(text) = run[key].as_str() {
            output::line(label, text);
        }
    }
    for (_, checkpoint) in checkpoints {
        match checkpoint::inspect(checkpoint) {
            Ok(found) => output::line(
                "checkpoint",
                format_args!("{}: intact, {}", checkpoint.display(), output::bytes(found.bytes)),
            ),
            Err(error) => output::line("checkpoint", error),
        }
    }
    Ok(())
}
