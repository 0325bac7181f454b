//! What a run writes down while it works: `metrics.jsonl`, `timing.jsonl` and TensorBoard's event file.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};
use rullama_train::health::Watch;
use rullama_train::metrics::{self, Event, History, Notice, Step, Timing};
use rullama_train::{files, tensorboard};

/// Three files that grow, and what follows from them.
pub struct Record {
    /// Everything so far.
    pub history: History,
    watch: Watch,
    metrics: Growing,
    timing: Growing,
    tensorboard: Growing,
}

impl Record {
    /// Begins the files in `dir` with the lines of a checkpoint, or empty.
    pub fn begin(dir: &Path, metrics: &str, timing: &str) -> Result<Record> {
        let unreadable = |file: &'static str| {
            move |e: String| anyhow!("the checkpoint's {file}: {e}; start anew with --fresh")
        };
        let events = metrics::parse(metrics).map_err(unreadable("metrics.jsonl"))?;
        let history = History::replay(events, metrics::parse(timing).map_err(unreadable("timing.jsonl"))?);
        let mut watch = Watch::default();
        history.steps().for_each(|step| drop(watch.step(step)));
        Ok(Record {
            metrics: Growing::begin(dir.join("metrics.jsonl"), metrics.as_bytes())?,
            timing: Growing::begin(dir.join("timing.jsonl"), timing.as_bytes())?,
            tensorboard: Growing::begin(dir.join(tensorboard::FILE), &replayed(&history))?,
            watch,
            history,
        })
    }

    /// Adds an event.
    pub fn push(&mut self, event: Event) -> Result<()> {
        let timing = self.history.timing.last();
        let speed = timing.filter(|t| matches!(&event, Event::Step(step) if step.step == t.step));
        let records = tensorboard::records(&event, now(), speed.map(|t| t.tokens_per_second));
        self.metrics.append(metrics::line(&event).as_bytes())?;
        self.tensorboard.append(&records)?;
        self.history.push(event);
        Ok(())
    }

    /// Adds a step with its time; what is to be said of it is added too, and returned.
    pub fn step(&mut self, step: Step, timing: Timing) -> Result<Vec<Notice>> {
        let number = step.step;
        let signs = self.watch.step(&step);
        self.timing.append(metrics::line(&timing).as_bytes())?;
        self.history.timing.push(timing);
        self.push(Event::Step(step))?;
        let notices: Vec<Notice> = signs.into_iter().map(|notice| Notice { step: number, notice }).collect();
        for notice in &notices {
            self.push(Event::Notice(notice.clone()))?;
        }
        Ok(notices)
    }

    /// All lines of both files, for a checkpoint.
    pub fn lines(&self) -> (String, String) {
        let metrics = self.history.events.iter().map(metrics::line).collect();
        (metrics, self.history.timing.iter().map(metrics::line).collect())
    }
}

/// Seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
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
