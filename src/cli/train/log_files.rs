//! The files that grow during a run: `metrics.jsonl`, `timing.jsonl` and TensorBoard's event file.

use std::path::Path;

use anyhow::Result;
use rullama_train::files::GrowingFile;
use rullama_train::recipe::Recipe;
use rullama_train::report::csv;
use rullama_train::report::tensorboard;
use rullama_train::run::metrics::{self, History, MetricsEvent, StepMetrics, Timing, now};

/// The log files of a run.
pub struct LogFiles {
    metrics: GrowingFile,
    timing: GrowingFile,
    tensorboard: GrowingFile,
    csv: Option<GrowingFile>,
    /// Whether the objective compares samples.
    compares: bool,
}

impl LogFiles {
    /// Creates the files of a run in `dir` with the measurements so far.
    pub fn create(dir: &Path, history: &History, recipe: &Recipe) -> Result<LogFiles> {
        let compares = !recipe.train.objective.name.is_sft();
        let csv = recipe.log.csv.then(|| {
            GrowingFile::create(dir.join("metrics.csv"), csv::replayed(history, compares).as_bytes())
        });
        let (metrics, timing) = history.lines();
        Ok(LogFiles {
            metrics: GrowingFile::create(dir.join("metrics.jsonl"), metrics.as_bytes())?,
            timing: GrowingFile::create(dir.join("timing.jsonl"), timing.as_bytes())?,
            tensorboard: GrowingFile::create(dir.join(tensorboard::FILE), &replayed(history))?,
            csv: csv.transpose()?,
            compares,
        })
    }

    /// Appends an evaluation or a notice.
    pub fn event(&mut self, event: &MetricsEvent) -> Result<()> {
        self.add(event, None)?;
        self.add_row(csv::row(event, None, self.compares))
    }

    /// Appends a step and its duration.
    pub fn step(&mut self, step: &StepMetrics, timing: &Timing) -> Result<()> {
        self.timing.append(metrics::line(timing).as_bytes())?;
        let event = MetricsEvent::Step(step.clone());
        self.add(&event, Some(timing.tokens_per_second))?;
        self.add_row(csv::row(&event, Some(timing), self.compares))
    }

    fn add_row(&mut self, row: Option<String>) -> Result<()> {
        if let (Some(csv), Some(row)) = (&mut self.csv, row) {
            csv.append(row.as_bytes())?;
        }
        Ok(())
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
