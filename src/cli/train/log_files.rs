//! The files that grow during a run: `metrics.jsonl`, `timing.jsonl` and TensorBoard's event file.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rullama_train::files;
use rullama_train::report::tensorboard;
use rullama_train::run::metrics::{self, History, MetricsEvent, StepMetrics, Timing, now};

/// The log files of a run.
pub struct LogFiles {
    metrics: LogFile,
    timing: LogFile,
    tensorboard: LogFile,
}

impl LogFiles {
    /// Creates the files in `dir` with the measurements so far.
    pub fn create(dir: &Path, history: &History) -> Result<LogFiles> {
        let (metrics, timing) = history.lines();
        Ok(LogFiles {
            metrics: LogFile::create(dir.join("metrics.jsonl"), metrics.as_bytes())?,
            timing: LogFile::create(dir.join("timing.jsonl"), timing.as_bytes())?,
            tensorboard: LogFile::create(dir.join(tensorboard::FILE), &replayed(history))?,
        })
    }

    /// Appends an evaluation or a notice.
    pub fn event(&mut self, event: &MetricsEvent) -> Result<()> {
        self.add(event, None)
    }

    /// Appends a step and its duration.
    pub fn step(&mut self, step: &StepMetrics, timing: &Timing) -> Result<()> {
        self.timing.append(metrics::line(timing).as_bytes())?;
        self.add(&MetricsEvent::Step(step.clone()), Some(timing.tokens_per_second))
    }

    fn add(&mut self, event: &MetricsEvent, tokens_per_second: Option<f64>) -> Result<()> {
        self.metrics.append(metrics::line(event).as_bytes())?;
        self.tensorboard.append(&tensorboard::records(event, now(), tokens_per_second))?;
        Ok(())
    }
}

/// The contents of TensorBoard's file, as an uninterrupted run would have written them.
fn replayed(history: &History) -> Vec<u8> {
    let mut time = history.timing.first().map_or_else(now, |t| t.time - t.seconds);
    let mut records = tensorboard::header(time);
    let mut timing = history.timing.iter().peekable();
    for event in &history.events {
        let step = if let MetricsEvent::Step(step) = event { Some(step.step) } else { None };
        let own = timing.next_if(|t| Some(t.step) == step);
        time = own.map_or(time, |t| t.time);
        records.extend(tensorboard::records(event, time, own.map(|t| t.tokens_per_second)));
    }
    records
}

/// A file that only grows.
struct LogFile {
    path: PathBuf,
    file: File,
}

impl LogFile {
    /// Creates or replaces the file at `path`.
    fn create(path: PathBuf, contents: &[u8]) -> Result<LogFile, files::Error> {
        files::write_atomic(&path, contents)?;
        match File::options().append(true).open(&path) {
            Ok(file) => Ok(LogFile { path, file }),
            Err(source) => Err(files::Error { path, source }),
        }
    }

    /// Appends `bytes` in one write, so that a killed run leaves no partial line.
    fn append(&mut self, bytes: &[u8]) -> Result<(), files::Error> {
        self.file.write_all(bytes).map_err(|source| files::Error { path: self.path.clone(), source })
    }
}
