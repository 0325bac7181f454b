//! What a run writes down while it works: `metrics.jsonl`, `timing.jsonl` and TensorBoard's event file.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rullama_train::files;
use rullama_train::report::tensorboard;
use rullama_train::run::metrics::{self, Event, History, Step, Timing, now};

/// Three files that grow.
pub struct Record {
    metrics: Growing,
    timing: Growing,
    tensorboard: Growing,
}

impl Record {
    /// Begins the files in `dir` with what was measured so far.
    pub fn begin(dir: &Path, history: &History) -> Result<Record> {
        let (metrics, timing) = history.lines();
        Ok(Record {
            metrics: Growing::begin(dir.join("metrics.jsonl"), metrics.as_bytes())?,
            timing: Growing::begin(dir.join("timing.jsonl"), timing.as_bytes())?,
            tensorboard: Growing::begin(dir.join(tensorboard::FILE), &replayed(history))?,
        })
    }

    /// Adds an event that is no step.
    pub fn push(&mut self, event: &Event) -> Result<()> {
        self.add(event, None)
    }

    /// Adds a step with its time.
    pub fn step(&mut self, step: &Step, timing: &Timing) -> Result<()> {
        self.timing.append(metrics::line(timing).as_bytes())?;
        self.add(&Event::Step(step.clone()), Some(timing.tokens_per_second))
    }

    fn add(&mut self, event: &Event, tokens_per_second: Option<f64>) -> Result<()> {
        self.metrics.append(metrics::line(event).as_bytes())?;
        self.tensorboard.append(&tensorboard::records(event, now(), tokens_per_second))?;
        Ok(())
    }
}

/// TensorBoard's file as it would be had the run never stopped.
fn replayed(history: &History) -> Vec<u8> {
    let mut time = history.timing.first().map_or_else(now, |t| t.time - t.seconds);
    let mut records = tensorboard::header(time);
    let mut timing = history.timing.iter().peekable();
    for event in &history.events {
        let step = if let Event::Step(step) = event { Some(step.step) } else { None };
        let own = timing.next_if(|t| Some(t.step) == step);
        time = own.map_or(time, |t| t.time);
        records.extend(tensorboard::records(event, time, own.map(|t| t.tokens_per_second)));
    }
    records
}

/// A file that grows.
struct Growing {
    path: PathBuf,
    file: File,
}

impl Growing {
    /// Replaces what is at `path`.
    fn begin(path: PathBuf, contents: &[u8]) -> Result<Growing, files::Error> {
        files::write_atomic(&path, contents)?;
        match File::options().append(true).open(&path) {
            Ok(file) => Ok(Growing { path, file }),
            Err(source) => Err(files::Error { path, source }),
        }
    }

    /// All of `bytes` in one write, so that a kill leaves no half of them.
    fn append(&mut self, bytes: &[u8]) -> Result<(), files::Error> {
        self.file.write_all(bytes).map_err(|source| files::Error { path: self.path.clone(), source })
    }
}
