//! The files that grow during a run: `metrics.jsonl`, `timing.jsonl`, `rollouts.jsonl` and TensorBoard's event file.

use std::path::Path;

use anyhow::Result;
use rullama_train::files::GrowingFile;
use rullama_train::recipe::Recipe;
use rullama_train::report::csv::{self, Columns};
use rullama_train::report::tensorboard;
use rullama_train::run::RolloutLine;
use rullama_train::run::metrics::{self, History, MetricsEvent, StepMetrics, Timing, now};

use super::rollouts;

/// The log files of a run.
pub struct LogFiles {
    metrics: GrowingFile,
    timing: GrowingFile,
    tensorboard: GrowingFile,
    csv: Option<GrowingFile>,
    /// The completions, for objectives that draw them.
    rollouts: Option<GrowingFile>,
    columns: Columns,
}

impl LogFiles {
    /// Creates the files of a run in `dir` with the measurements so far.
    pub fn create(dir: &Path, history: &History, recipe: &Recipe) -> Result<LogFiles> {
        let columns = Columns::of(recipe);
        let csv = recipe.log.csv.then(|| {
            GrowingFile::create(dir.join("metrics.csv"), csv::replayed(history, columns).as_bytes())
        });
        let (metrics, timing) = history.lines();
        let last = history.steps().last().map_or(0, |step| step.step);
        let rollouts = recipe.grpo.map(|_| rollouts::kept(dir, last)).transpose()?;
        Ok(LogFiles {
            rollouts,
            metrics: GrowingFile::create(dir.join("metrics.jsonl"), metrics.as_bytes())?,
            timing: GrowingFile::create(dir.join("timing.jsonl"), timing.as_bytes())?,
            tensorboard: GrowingFile::create(dir.join(tensorboard::FILE), &replayed(history))?,
            csv: csv.transpose()?,
            columns,
        })
    }

    /// Appends an evaluation or a notice.
    pub fn event(&mut self, event: &MetricsEvent) -> Result<()> {
        self.add(event, None)?;
        self.add_row(csv::row(event, None, self.columns))
    }

    /// Appends a step and its duration.
    pub fn step(&mut self, step: &StepMetrics, timing: &Timing) -> Result<()> {
        self.timing.append(metrics::line(timing).as_bytes())?;
        let event = MetricsEvent::Step(step.clone());
        self.add(&event, Some(timing.tokens_per_second))?;
        self.add_row(csv::row(&event, Some(timing), self.columns))
    }

    /// Appends completions.
    pub fn rollouts(&mut self, lines: &[RolloutLine]) -> Result<()> {
        if let Some(file) = self.rollouts.as_mut().filter(|_| !lines.is_empty()) {
            let lines: String = lines.iter().map(metrics::line).collect();
            file.append(lines.as_bytes())?;
        }
        Ok(())
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
