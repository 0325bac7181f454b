//! Charts and figures of runs whose objective compares samples, or learns from a teacher.

use std::collections::BTreeMap;

use super::chart::{Chart, Series};
use super::text::{number, percent};
use crate::run::metrics::{Evaluation, History};
use crate::train::objective::PreferenceMetrics;

/// The value of a metric; `None` where it does not apply.
type Value = fn(&PreferenceMetrics) -> Option<f64>;

/// Whether the run compares samples, or learns from a teacher.
pub fn compares(history: &History) -> bool {
    // A divergence alone is that of completions from a reference.
    let others = |metrics: &PreferenceMetrics| PreferenceMetrics { kl: None, ..*metrics };
    history.steps().any(|step| {
        let none = PreferenceMetrics::default();
        if step.rewards.is_empty() { step.preference != none } else { others(&step.preference) != none }
    })
}

/// Rewards, margins, log-probabilities and the share of pairs that are ranked right; distances from the teacher where there is one.
pub fn charts(history: &History, last_step: f64) -> Vec<Chart<'static>> {
    if !compares(history) {
        return Vec::new();
    }
    if history.steps().any(|step| step.preference.distillation_loss.is_some()) {
        return lessons(history, last_step);
    }
    let steps = |value: Value| -> Vec<(f64, f64)> {
        history.steps().filter_map(|s| Some((s.step as f64, value(&s.preference)?))).collect()
    };
    let evaluations = |name: &str| -> Vec<(f64, f64)> {
        let found = history.evaluations();
        found.filter_map(|e| Some((e.step as f64, *e.preference.get(name)?))).collect()
    };
    let line = |name, class, value: Value| Series::line(name, class, steps(value));
    let validation = |metric| Series::validation(evaluations(metric));
    let chart = |title, note, series| Chart::of_run(title, note, series, last_step);
    let rewards = vec![
        line("chosen", "train", |m| m.rewards_chosen),
        line("rejected", "plain", |m| m.rewards_rejected),
    ];
    let margins = vec![line("each step", "train", |m| m.rewards_margins), validation("eval_rewards/margins")];
    let logps =
        vec![line("chosen", "train", |m| m.logps_chosen), line("rejected", "plain", |m| m.logps_rejected)];
    let ranked =
        vec![line("each step", "raw", |m| m.rewards_accuracies), validation("eval_rewards/accuracies")];
    let mut charts = vec![
        chart("Rewards", "beta times the change of the log-probability", rewards),
        chart("Reward margin", "chosen less rejected", margins),
        chart("Log-probabilities", "of the answers", logps),
    ];
    if !steps(|m| m.rewards_accuracies).is_empty() {
        charts.push(Chart { format: percent, ..chart("Pairs ranked right", "of all pairs", ranked) });
    }
    if !steps(|m| m.kl).is_empty() {
        charts.push(chart("KL", "KTO's estimate", vec![line("each step", "train", |m| m.kl)]));
    }
    charts
}

/// Divergence from the teacher, cross entropy, and how often both find the same token likeliest.
fn lessons(history: &History, last_step: f64) -> Vec<Chart<'static>> {
    let chart = |title, note, name: &str, value: Value| {
        let steps = history.steps().filter_map(|s| Some((s.step as f64, value(&s.preference)?))).collect();
        let found = history.evaluations();
        let found = found.filter_map(|e| Some((e.step as f64, *e.preference.get(name)?))).collect();
        let series = vec![Series::line("each step", "raw", steps), Series::validation(found)];
        Chart::of_run(title, note, series, last_step)
    };
    let agreement = |m: &PreferenceMetrics| m.teacher_agreement;
    let agreement =
        chart("Agreement", "with the teacher's first choice", "eval_teacher_agreement", agreement);
    vec![
        chart("Divergence", "from the teacher", "eval_distillation_loss", |m| m.distillation_loss),
        chart("Cross entropy", "of the samples", "eval_nll_loss", |m| m.nll_loss),
        Chart { format: percent, ..agreement },
    ]
}

/// Writes a value.
type Text = fn(f64) -> String;

/// A figure for the margin, and one for the pairs: name, value, and the value before.
pub fn figures(first: Option<&Evaluation>, last: &Evaluation) -> Vec<(&'static str, String, String)> {
    let known: [(&str, &str, Text); 4] = [
        ("Divergence", "eval_distillation_loss", number),
        ("Teacher's choice", "eval_teacher_agreement", percent),
        ("Reward margin", "eval_rewards/margins", number),
        ("Pairs ranked right", "eval_rewards/accuracies", percent),
    ];
    let of = |metrics: &BTreeMap<String, f64>, name: &str| metrics.get(name).copied();
    let figure = |(title, name, text): (&'static str, &str, Text)| {
        let value = of(&last.preference, name)?;
        let from = first.and_then(|first| of(&first.preference, name));
        Some((title, text(value), from.map_or(String::new(), |from| format!("from {}", text(from)))))
    };
    known.into_iter().filter_map(figure).collect()
}
