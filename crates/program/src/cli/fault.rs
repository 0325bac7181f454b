//! Faults on request, for tests: see CONTRIBUTING.md.

use std::time::Duration;

use anyhow::{Result, bail};
use rullama_train::files::faults;
use rullama_train::gpu::Gpu;

/// Sets the fault of the disk in `RULLAMA_DISK_FAULT`, such as `once:7`.
pub fn of_disk() -> Result<()> {
    let Some(text) = variable("RULLAMA_DISK_FAULT") else { return Ok(()) };
    match text.parse() {
        Ok(fault) => faults::set(Some(fault)),
        Err(problem) => bail!("RULLAMA_DISK_FAULT: {problem}"),
    }
    Ok(())
}

/// Lets the device be lost at the submission in `RULLAMA_DEVICE_FAULT`.
pub fn of_device(gpu: &Gpu) {
    if let Some(submission) = variable("RULLAMA_DEVICE_FAULT").and_then(|text| text.parse().ok()) {
        gpu.lose_at(submission);
    }
}

/// Time after which a client that takes nothing of a response is dropped: `RULLAMA_WRITE_TIMEOUT`, in milliseconds.
pub fn write_timeout() -> Option<Duration> {
    variable("RULLAMA_WRITE_TIMEOUT")?.parse().ok().map(Duration::from_millis)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
