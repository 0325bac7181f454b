//! What a run says while it works: bars on a terminal, lines elsewhere, JSON objects or nothing where that is asked for.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rullama_train::run::metrics::{Evaluation, History, Notice, Step, Timing};
use serde_json::{Value, json};

use super::super::output as show;

/// Without a terminal there are about so many lines of steps …
const LINES: usize = 20;
/// … and at least one in this time.
const AT_LEAST_EVERY: Duration = Duration::from_secs(60);

/// How the run speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voice {
    /// Text, with bars where there is a terminal.
    Words,
    /// One JSON object a line.
    Json,
    /// Errors only.
    Quiet,
}

/// Where it speaks.
pub struct Console {
    voice: Voice,
    /// Of the steps.
    bar: ProgressBar,
    steps: usize,
    /// When the first step of this program began, and how many were done before.
    first: Option<(Instant, usize)>,
    last_line: Instant,
    memory: u64,
}

impl Console {
    /// For a run of `steps` steps that uses `memory` bytes of the device.
    pub fn new(voice: Voice, steps: usize, memory: u64) -> Console {
        let bar = ProgressBar::hidden();
        Console { voice, bar, steps, first: None, last_line: Instant::now(), memory }
    }

    /// Whether text is wanted.
    pub fn words(&self) -> bool {
        self.voice == Voice::Words
    }

    /// An object on a line of its own, where JSON is wanted.
    pub fn json(&self, value: impl FnOnce() -> Value) {
        if self.voice == Voice::Json {
            show::text(value());
        }
    }

    /// A labelled line, where text is wanted; above the bar.
    pub fn line(&self, label: &str, text: &str) {
        if self.words() {
            self.bar.suspend(|| show::line(label, text));
        }
    }

    /// A bar of its own for some other phase, which goes when it is done.
    pub fn phase(&self, name: &str, len: usize) -> ProgressBar {
        if !self.has_bars() {
            return ProgressBar::hidden();
        }
        self.bar.finish_and_clear();
        let template = match len {
            0 => "{spinner:.cyan}          {msg}  {elapsed}",
            _ => "{msg:<10} {bar:32.cyan/black.bright}  {pos}/{len}  {eta} left",
        };
        let bar = ProgressBar::new(len as u64).with_style(style(template)).with_message(name.to_string());
        bar.enable_steady_tick(Duration::from_millis(100));
        bar
    }

    /// The steps begin, or go on after another phase.
    pub fn start_steps(&mut self, done: usize) {
        if !self.has_bars() {
            return;
        }
        let template = "step       {bar:32.cyan/black.bright}  {pos}/{len}  {percent} %  {prefix}\n           {wide_msg}";
        self.bar = ProgressBar::new(self.steps as u64).with_style(style(template));
        self.bar.set_position(done as u64);
    }

    /// A step was taken or left out.
    pub fn step(&mut self, step: &Step, timing: &Timing, history: &History) {
        let left = self.left(step.step, timing.seconds);
        self.json(|| {
            let mut object = serde_json::to_value(step).expect("plain values under text keys");
            object["event"] = "step".into();
            object["steps"] = self.steps.into();
            object["smoothed_loss"] = json!(history.smoothed);
            object["seconds"] = timing.seconds.into();
            object["tokens_per_second"] = timing.tokens_per_second.into();
            object["seconds_left"] = left.as_secs_f64().into();
            object["memory_bytes"] = self.memory.into();
            object
        });
        let number = |x: Option<f64>, digits: usize| x.map_or("–".into(), |x| format!("{x:.digits$}"));
        let message = format!(
            "loss {} (smoothed {}) · accuracy {} % · lr {:.2e} · grad {} · {:.0} tokens/s",
            number(step.loss, 4),
            number(history.smoothed, 4),
            number(step.accuracy.map(|a| 100.0 * a), 1),
            step.learning_rate,
            number(step.grad_norm, 3),
            recent_speed(&history.timing),
        );
        let (memory, left) = (show::bytes(self.memory), show::duration(left));
        self.bar.set_position(step.step as u64);
        self.bar.set_prefix(format!("{left} left  {memory}"));
        self.bar.set_message(message.clone());
        let due = step.step.is_multiple_of(self.steps.div_ceil(LINES)) || step.step == self.steps;
        if self.words() && !self.has_bars() && (due || self.last_line.elapsed() >= AT_LEAST_EVERY) {
            let label = format!("step {}/{}", step.step, self.steps);
            show::line(&label, format_args!("{message} · {memory} · {left} left"));
            self.last_line = Instant::now();
        }
    }

    /// The model was evaluated.
    pub fn evaluation(&self, evaluation: &Evaluation, is_best: bool) {
        self.json(|| {
            let mut object = serde_json::to_value(evaluation).expect("plain values under text keys");
            object["event"] = "evaluation".into();
            object["best"] = is_best.into();
            object
        });
        let Some(scores) = &evaluation.scores else { return };
        let best = if is_best && evaluation.step > 0 { ", the best so far" } else { "" };
        let (loss, perplexity) = (scores.eval_loss, scores.eval_perplexity);
        let accuracy = 100.0 * scores.eval_accuracy;
        let text =
            format!("validation loss {loss:.4}, perplexity {perplexity:.2}, accuracy {accuracy:.1} %{best}");
        self.line(&format!("step {}/{}", evaluation.step, self.steps), &text);
    }

    /// Something to look at.
    pub fn notice(&self, notice: &Notice) {
        self.json(|| json!({ "event": "notice", "step": notice.step, "notice": notice.notice }));
        self.line("notice", &format!("step {}: {}", notice.step, notice.notice));
    }

    /// A checkpoint was written.
    pub fn saved(&self, step: usize, path: &Path) {
        self.json(|| json!({ "event": "checkpoint", "step": step, "path": path }));
    }

    /// The steps are over.
    pub fn finish_steps(&self) {
        self.bar.finish_and_clear();
    }

    fn has_bars(&self) -> bool {
        self.words() && std::io::stderr().is_terminal()
    }

    /// Time until the last step, evaluations on the way included. The step before took `seconds`.
    fn left(&mut self, done: usize, seconds: f64) -> Duration {
        let now = Instant::now();
        let began = now.checked_sub(Duration::from_secs_f64(seconds)).unwrap_or(now);
        let (began, before) = *self.first.get_or_insert((began, done - 1));
        began.elapsed().mul_f64((self.steps - done) as f64 / (done - before) as f64)
    }
}

/// Tokens a second over the last ten steps: a single one says little.
fn recent_speed(timing: &[Timing]) -> f64 {
    let recent = &timing[timing.len().saturating_sub(10)..];
    let tokens: f64 = recent.iter().map(|t| t.tokens_per_second * t.seconds).sum();
    tokens / recent.iter().map(|t| t.seconds).sum::<f64>()
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).expect("templates are tested by running");
    style.progress_chars("━━─")
}
