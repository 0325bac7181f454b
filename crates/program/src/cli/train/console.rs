//! The output of a run: progress bars on a terminal, lines of text elsewhere, JSON objects or nothing on request.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use rullama_train::report;
use rullama_train::run::metrics::{Effects, Evaluation, History, RunNotice, StepMetrics, Timing};
use rullama_train::run::pace::{Pace, evaluations_after};
use rullama_train::run::{Phase, RolloutLine};
use rullama_train::train::objective::PreferenceMetrics;
use rullama_train::words;
use serde_json::{Value, json};

use super::super::output;
use super::super::output::progress::{Progress, style};
use super::hook::Hook;

/// Without a terminal, about this many step lines are printed per run …
const LINES: usize = 20;
/// … and at least one in this interval.
const AT_LEAST_EVERY: Duration = Duration::from_secs(60);

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputMode {
    /// Text, with progress bars on a terminal.
    Text,
    /// One JSON object per line.
    Json,
    /// Errors only.
    Quiet,
}

impl OutputMode {
    /// Prints a labelled line after the run.
    pub fn say(self, label: &str, text: &str) {
        match self {
            OutputMode::Text => output::line(label, text),
            OutputMode::Json => output::text(json!({ "event": "ollama", label: text })),
            OutputMode::Quiet => {}
        }
    }
}

/// Prints the progress of a run.
pub struct Console {
    mode: OutputMode,
    /// The progress bar of the steps.
    bar: ProgressBar,
    /// The progress bar of another phase.
    phase: Option<(Phase, Progress)>,
    steps: usize,
    /// Steps between evaluations.
    every: usize,
    /// Whether evaluations have replies.
    replies: bool,
    /// Steps that this program has taken, and their seconds.
    taken: (usize, f64),
    /// When the current evaluation began.
    evaluating: Option<Instant>,
    /// Seconds of the last evaluation.
    evaluation: Option<f64>,
    last_line: Instant,
    memory: u64,
    hook: Option<Hook>,
}

impl Console {
    /// A console for a run of `steps` steps that uses `memory` bytes of the device.
    pub fn new(mode: OutputMode, steps: usize, memory: u64) -> Console {
        let bar = ProgressBar::hidden();
        Console {
            mode,
            bar,
            phase: None,
            steps,
            every: 0,
            replies: false,
            taken: (0, 0.0),
            evaluating: None,
            evaluation: None,
            last_line: Instant::now(),
            memory,
            hook: None,
        }
    }

    /// With evaluations every `every` steps, which have replies or not: the time that is left counts them.
    pub fn with_evaluations(self, every: usize, replies: bool) -> Console {
        Console { every, replies, ..self }
    }

    /// Also hands every event to a command.
    pub fn with_hook(self, hook: Option<Hook>) -> Console {
        Console { hook, ..self }
    }

    /// Ends the command that gets the events, and reports its problems.
    pub fn end_hook(&mut self) {
        if let Some(problem) = self.hook.take().and_then(Hook::finish) {
            self.line("notice", &problem);
        }
    }

    /// Whether the output is text.
    pub fn is_text(&self) -> bool {
        self.mode == OutputMode::Text
    }

    /// Prints an object on its own line if the output is JSON, and hands it to the command of `log.hook`.
    pub fn json(&self, value: impl FnOnce() -> Value) {
        if self.mode != OutputMode::Json && self.hook.is_none() {
            return;
        }
        let value = value();
        if let Some(hook) = &self.hook {
            hook.send(value.to_string());
        }
        if self.mode == OutputMode::Json {
            output::text(value);
        }
    }

    /// Prints a labelled line above the progress bar if the output is text.
    pub fn line(&self, label: &str, text: &str) {
        if self.is_text() {
            self.bar.suspend(|| output::line(label, text));
        }
    }

    /// Shows the progress of another phase, until the caller drops it.
    pub fn bar(&self, name: &str, len: usize) -> Progress {
        if !self.is_text() {
            return Progress::hidden();
        }
        self.bar.finish_and_clear();
        Progress::new(name, len)
    }

    /// Shows the progress of a phase during the run.
    pub fn progress(&mut self, phase: Phase, done: usize, of: usize) {
        if matches!(phase, Phase::Validation | Phase::Replies | Phase::Answers) {
            self.evaluating.get_or_insert_with(Instant::now);
        }
        // A step has both of them: without a bar they would be lines of their own.
        if matches!(phase, Phase::Completions | Phase::Rewards) && !self.has_bars() {
            return;
        }
        if self.phase.as_ref().is_none_or(|(open, _)| *open != phase) {
            self.end_phase();
            let bar = match phase {
                Phase::Reference => self.bar("reference", of),
                Phase::Completions => self.bar("completions", of),
                Phase::Rewards => self.bar("rewards", 0),
                Phase::Validation => self.bar("validation", of),
                Phase::Replies => self.bar("replies", of),
                Phase::Answers => self.bar("answers", of),
                Phase::General => self.bar("general questions", of),
                Phase::Export => self.bar("comparing the exports", 0),
            };
            self.phase = Some((phase, bar));
        }
        if let Some((_, bar)) = &self.phase {
            bar.set_position(done);
        }
    }

    /// Clears the progress bar of a phase. Returns whether that phase was part of a step.
    pub fn end_phase(&mut self) -> bool {
        let Some((phase, bar)) = self.phase.take() else { return false };
        bar.finish_and_clear();
        matches!(phase, Phase::Completions | Phase::Rewards)
    }

    /// Opens the progress bar of the steps, at the start or after another phase.
    pub fn start_steps(&mut self, done: usize) {
        if !self.has_bars() {
            return;
        }
        // At most 80 columns: 11, 20, and 45 for a run of 1 000 000 steps. A narrower terminal cuts the end off.
        let template = "step       {bar:20.cyan/black.bright}  {pos}/{len}  {prefix}\n           {wide_msg}";
        self.bar = ProgressBar::new(self.steps as u64).with_style(style(template));
        self.bar.set_position(done as u64);
    }

    /// Prints a step that was taken or skipped.
    pub fn step(&mut self, step: &StepMetrics, timing: &Timing, history: &History) {
        self.taken = (self.taken.0 + 1, self.taken.1 + timing.seconds);
        let left = self.left(step.step);
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
        // The bar shows what matters first: a narrow terminal cuts the end off.
        let (right, measured) = measured(step);
        let short = format!(
            "loss {} · {right} · {:.0} tokens/s · lr {}",
            number(history.smoothed, 4),
            recent_speed(&history.timing),
            words::rate(step.learning_rate),
        );
        let message = format!(
            "loss {} (smoothed {}) · {} · lr {} · grad {} · {:.0} tokens/s",
            number(step.loss, 4),
            number(history.smoothed, 4),
            measured,
            words::rate(step.learning_rate),
            number(step.grad_norm, 3),
            recent_speed(&history.timing),
        );
        let (memory, left) = (output::bytes(self.memory), output::duration(left));
        self.bar.set_position(step.step as u64);
        self.bar.set_prefix(format!("{left} left"));
        self.bar.set_message(short);
        let due = step.step.is_multiple_of(self.steps.div_ceil(LINES)) || step.step == self.steps;
        if self.is_text() && !self.has_bars() && (due || self.last_line.elapsed() >= AT_LEAST_EVERY) {
            let label = format!("step {}/{}", step.step, self.steps);
            let left = if step.step < self.steps { format!(" · {left} left") } else { String::new() };
            output::line(&label, format_args!("{message} · {memory}{left}"));
            self.last_line = Instant::now();
        }
        if self.taken.0 == 1 {
            self.estimate(step.step);
        }
    }

    /// Prints how long a run of more than a minute will take, after its first step.
    fn estimate(&self, done: usize) {
        let pace = self.pace(done - 1);
        if pace.seconds() >= 60.0 {
            self.line("time", &pace.to_string());
        }
    }

    /// Prints the best and the worst of the completions of a step as JSON. Does nothing where none were drawn for it.
    pub fn completions(&self, lines: &[RolloutLine]) {
        let Some(step) = lines.first().map(|line| line.step) else { return };
        let [best, worst] = report::best_and_worst(lines);
        self.json(|| json!({ "event": "completions", "step": step, "best": best, "worst": worst }));
    }

    /// The time that the steps after `done` take, and the evaluations.
    fn pace(&self, done: usize) -> Pace {
        let evaluations = evaluations_after(done, self.every, self.steps);
        let steps = self.steps - done;
        Pace {
            steps: (steps, steps as f64 * self.taken.1 / self.taken.0.max(1) as f64),
            evaluations: (evaluations, self.evaluation.map(|seconds| evaluations as f64 * seconds)),
            replies: self.replies,
        }
    }

    /// Prints an evaluation. `before`: validation loss before the first step.
    pub fn evaluation(&mut self, evaluation: &Evaluation, is_best: bool, before: Option<f64>) {
        // One without samples and replies takes no time.
        self.evaluation = Some(self.evaluating.take().map_or(0.0, |began| began.elapsed().as_secs_f64()));
        self.json(|| {
            let mut object = serde_json::to_value(evaluation).expect("plain values under text keys");
            object["event"] = "evaluation".into();
            object["best"] = is_best.into();
            object
        });
        if let Some(text) = output::eval_rewards(&evaluation.preference) {
            let best = if is_best && evaluation.step > 0 { ", best so far" } else { "" };
            self.line(
                &format!("step {}/{}", evaluation.step, self.steps),
                &format!("validation {text}{best}"),
            );
        }
        let Some(scores) = &evaluation.scores else { return };
        let best = match before.filter(|_| is_best && evaluation.step > 0) {
            Some(before) if before <= scores.eval_loss => ", best so far, but no better than before training",
            Some(_) => ", best so far",
            None => "",
        };
        let (loss, perplexity) = (scores.eval_loss, scores.eval_perplexity);
        let accuracy = 100.0 * scores.eval_accuracy;
        let text = match evaluation.preference.is_empty() {
            true => format!("perplexity {perplexity:.2}, accuracy {accuracy:.1} %"),
            false => output::preference(&evaluation.preference),
        };
        let text = format!("validation loss {loss:.4}, {text}{best}");
        let label = format!("step {}/{}", evaluation.step, self.steps);
        self.line(&label, &text);
        if !evaluation.metrics.is_empty() {
            let answers = output::count(evaluation.metric_samples, "answer");
            self.line(&label, &format!("{} over {answers}", evaluation.metrics_text()));
        }
    }

    /// Prints the effects of the trained adapter as JSON; the summary has them as text.
    pub fn effects(&self, effects: &Effects, seconds: f64) {
        self.json(|| {
            let mut object = serde_json::to_value(effects).expect("plain values under text keys");
            object["event"] = "effects".into();
            object["seconds"] = seconds.into();
            object
        });
    }

    /// Prints a warning.
    pub fn notice(&self, notice: &RunNotice) {
        self.json(|| json!({ "event": "notice", "step": notice.step, "notice": notice.notice }));
        self.line("notice", &format!("step {}: {}", notice.step, notice.notice));
    }

    /// Prints that a checkpoint was written.
    pub fn checkpoint(&self, step: usize, path: &Path) {
        self.json(|| json!({ "event": "checkpoint", "step": step, "path": path }));
    }

    /// Clears the progress bar of the steps.
    pub fn finish_steps(&self) {
        self.bar.finish_and_clear();
    }

    fn has_bars(&self) -> bool {
        self.is_text() && std::io::stderr().is_terminal()
    }

    /// Estimated time until the end of the run, evaluations included.
    fn left(&self, done: usize) -> Duration {
        Duration::from_secs_f64(self.pace(done).seconds())
    }
}

/// Tokens per second over the last ten steps; single steps vary too much.
fn recent_speed(timing: &[Timing]) -> f64 {
    let recent = &timing[timing.len().saturating_sub(10)..];
    let tokens: f64 = recent.iter().map(|t| t.tokens_per_second * t.seconds).sum();
    tokens / recent.iter().map(|t| t.seconds).sum::<f64>()
}

/// A value with so many digits, or a dash.
fn number(x: Option<f64>, digits: usize) -> String {
    x.map_or("–".into(), |x| format!("{x:.digits$}"))
}

/// The measurement of a step that matters most, for a bar, and all that matter, for a line.
fn measured(step: &StepMetrics) -> (String, String) {
    if let (Some(text), Some(reward)) = (output::rewards(&step.rewards), step.rewards.get("reward")) {
        return (format!("reward {reward:.3}"), text);
    }
    let right = match step.preference {
        metrics if metrics == PreferenceMetrics::default() => {
            let accuracy = step.accuracy.map(|a| 100.0 * a);
            return (
                format!("{} % right", number(accuracy, 0)),
                format!("accuracy {} %", number(accuracy, 1)),
            );
        }
        PreferenceMetrics { distillation_loss: Some(distance), .. } => format!("divergence {distance:.4}"),
        metrics => format!("margin {}", number(metrics.rewards_margins, 2)),
    };
    (right, compared(&step.preference))
}

/// The comparisons of a step: `reward margin 0.512, 87.5 % of pairs ranked right`.
fn compared(metrics: &PreferenceMetrics) -> String {
    output::preference(&metrics.of_evaluation())
}
