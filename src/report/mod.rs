//! `report.html`: one self-contained page about a run, for light and dark screens of any width.

mod chart;
pub mod csv;
mod effects;
mod next;
mod preference;
mod range;
mod replies;
mod rewards;
mod sweep;
pub mod tensorboard;
mod text;

use std::fmt::Write;

use serde_json::Value;

use crate::recipe::{Metric, Recipe};
use crate::run::metrics::{Evaluation, History, RunNotice, Scores, StepMetrics};
use crate::run::{Identity, RolloutLine, Run, Status, identity};
use crate::verify::Effect;
use chart::{Chart, Series};
use text::{duration, escape, grouped, number, percent, setting, small};

pub use range::Range;
pub use rewards::best_and_worst;
pub use sweep::{Point, Sweep};
pub use text::date;

/// Name of the file.
pub const FILE: &str = "report.html";

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// Maximum number of figures in a row.
const MOST_FIGURES: usize = 6;

/// Maximum number of steps that are drawn without their mean.
const MAX_WITHOUT_MEAN: usize = 200;

/// The contents of a report.
pub struct Report<'a> {
    /// Recipe of the run.
    pub recipe: &'a Recipe,
    /// Metrics of the run.
    pub history: &'a History,
    /// Status of the run.
    pub status: Status,
    /// Number of steps of the whole run.
    pub steps: usize,
    /// The step whose adapter was exported.
    pub kept: Option<usize>,
    /// Description of the device.
    pub device: String,
    /// Name of the base.
    pub base: &'a str,
    /// Digests of the base, the tokenizer and the samples.
    pub identity: &'a Identity,
    /// Digest of the exported adapter.
    pub adapter_digest: Option<String>,
    /// Number of trainable values.
    pub parameters: usize,
    /// Planned device memory in bytes.
    pub planned_bytes: u64,
    /// Number of training samples.
    pub train_samples: usize,
    /// Number of validation samples.
    pub validation_samples: usize,
    /// The effect of the exported adapter on its base.
    pub effect: Option<Effect>,
    /// Completions of the last step, for objectives that draw them.
    pub completions: &'a [RolloutLine],
}

impl<'a> Report<'a> {
    /// The report of a run in its current state. `kept`: the step whose adapter was exported; `adapter`: that file's bytes.
    pub fn of(run: &'a Run<'_>, status: Status, kept: Option<usize>, adapter: Option<&[u8]>) -> Report<'a> {
        let data = &run.prepared.data;
        Report {
            recipe: run.recipe,
            history: &run.history,
            status,
            steps: run.steps(),
            kept,
            device: run.gpu().description(),
            base: run.base.base.name(),
            identity: run.identity,
            adapter_digest: adapter.map(identity::sha256),
            parameters: run.initial.parameters(),
            planned_bytes: run.trainer.plan().total(),
            train_samples: data.train.len(),
            validation_samples: data.validation.len(),
            effect: None,
            completions: &[],
        }
    }

    /// The report as an HTML page.
    pub fn html(&self) -> String {
        let dir = self.recipe.output.dir.display().to_string();
        let title =
            self.recipe.output.dir.file_name().map_or(dir, |name| name.to_string_lossy().into_owned());
        let title = escape(&title);
        let parts = [
            self.header(&title),
            self.figures(),
            effects::verdict(self),
            next::html(self),
            self.charts(),
            replies::html(self),
            rewards::html(self.completions),
            effects::table(self.history.effects()),
            self.sources(),
            self.notices(),
            self.settings(),
            self.facts(),
        ];
        page(&title, &parts.concat())
    }

    fn header(&self, title: &str) -> String {
        let began = self.history.timing.first().map_or(String::new(), |t| format!(" · {}", date(t.time)));
        let samples = grouped(self.train_samples);
        format!(
            "<header><div class=brand>rullama-train <span class=\"status {0}\">{0}</span></div><h1>{title}</h1>\
             <p class=under>LoRA of rank {1} on {2}, {samples} samples{began}</p></header>\n",
            self.status,
            self.recipe.lora.rank,
            escape(self.base),
        )
    }

    /// The evaluation of the exported adapter, or the last evaluation.
    fn last_evaluation(&self) -> Option<&Evaluation> {
        let kept = self.kept.and_then(|step| self.history.evaluation(step));
        kept.or(self.history.evaluations().last())
    }

    fn figures(&self) -> String {
        let scores = |e: Option<&Evaluation>| e.and_then(|e| e.scores);
        let first = scores(self.history.evaluation(0));
        let last = scores(self.last_evaluation());
        let mut figures: Vec<(&str, String, String)> = Vec::new();
        if let Some(last) = last {
            let from =
                |of: fn(&Scores) -> String| first.map_or(String::new(), |f| format!("from {}", of(&f)));
            let mut add = |name, of: fn(&Scores) -> String| figures.push((name, of(&last), from(of)));
            add("Validation loss", |s| number(s.eval_loss));
            add("Perplexity", |s| number(s.eval_perplexity));
            add("Token accuracy", |s| percent(s.eval_accuracy));
            figures.extend(
                self.last_evaluation()
                    .map_or(Vec::new(), |last| preference::figures(self.history.evaluation(0), last)),
            );
            figures.extend(self.metrics());
        } else if let Some(reward) =
            self.last_evaluation().and_then(|last| rewards::figure(self.history.evaluation(0), last))
        {
            figures.push(reward);
        } else if let (Some(first), Some(smoothed)) = (self.history.steps().next(), self.history.smoothed) {
            let from = first.loss.map_or(String::new(), |loss| format!("from {}", number(loss)));
            figures.push(("Training loss", number(smoothed), from));
        }
        let done = self.history.steps().count();
        let (seconds, speed) = self.history.speed();
        let tokens: usize = self.history.steps().map(|s| s.tokens).sum();
        let of = if done == self.steps { "all done".into() } else { format!("of {}", grouped(self.steps)) };
        figures.push(("Steps", grouped(done), of));
        if let Some(effects) = self.history.effects() {
            figures.extend(effects::figures(effects));
        } else if let Some(Effect { divergence, .. }) = self.effect {
            let places = format!("of {} places differ from the base", grouped(divergence.tokens));
            figures.push(("Words changed", percent(1.0 - divergence.top1), places));
        }
        if done > 0 {
            figures.push(("Speed", grouped(speed.round() as usize), "tokens per second".into()));
            figures.push(("Training time", duration(seconds), format!("{} tokens", grouped(tokens))));
        }
        let cell = |(name, value, under): &(&str, String, String)| {
            format!("<div class=card><dt>{name}</dt><dd><b>{value}</b><span>{under}</span></dd></div>")
        };
        // Rows as full as one another: six figures at most, and none alone.
        let columns = figures.len().div_ceil(figures.len().div_ceil(MOST_FIGURES));
        let cells: String = figures.iter().map(cell).collect();
        format!("<dl class=figures style=\"--columns:{columns}\">{cells}</dl>\n")
    }

    /// A figure for each of the recipe's metrics.
    fn metrics(&self) -> Vec<(&'static str, String, String)> {
        let before = self.history.evaluation(0).map(|e| &e.metrics);
        let Some(last) = self.last_evaluation() else { return Vec::new() };
        let figure = |(metric, value): (&Metric, &f64)| {
            let before = before.and_then(|before| before.get(metric));
            let from = before.map_or(String::new(), |value| format!("from {}, ", metric.text(*value)));
            let under = format!("{from}over {} answers", grouped(last.metric_samples));
            (metric.title(), metric.text(*value), under)
        };
        last.metrics.iter().map(figure).collect()
    }

    fn charts(&self) -> String {
        let h = self.history;
        let last_step = if self.status == Status::Running { self.steps } else { h.steps().count() } as f64;
        let of = |value: fn(&StepMetrics) -> Option<f64>| -> Vec<(f64, f64)> {
            h.steps().filter_map(|s| Some((s.step as f64, value(s)?))).collect()
        };
        let scores = |value: fn(&Scores) -> f64| -> Vec<(f64, f64)> {
            h.evaluations().filter_map(|e| Some((e.step as f64, value(&e.scores?)))).collect()
        };
        // Many steps are drawn faintly behind their mean.
        let lines = |points: Vec<(f64, f64)>| match points.len() {
            0..=MAX_WITHOUT_MEAN => vec![Series::line("each step", "train", points)],
            _ => {
                let mean = centred_mean(&points);
                vec![Series::line("each step", "raw", points), Series::line("mean", "train", mean)]
            }
        };
        let chart = |title, note, series| Chart::of_run(title, note, series, last_step);
        let loss = of(|s| s.loss);
        let mean = centred_mean(&loss);
        let loss = vec![
            Series::line("each step", "raw", loss),
            Series::line("mean", "train", mean),
            Series::validation(scores(|s| s.eval_loss)),
        ];
        let accuracy = vec![
            Series::line("training", "raw", of(|s| s.accuracy)),
            Series::validation(scores(|s| s.eval_accuracy)),
        ];
        let rate = vec![Series::line("", "train", of(|s| Some(s.learning_rate)))];
        let speed = lines(h.timing.iter().map(|t| (t.step as f64, t.tokens_per_second)).collect());
        let note = if preference::compares(h) { "the objective" } else { "over the loss tokens" };
        let mut charts = vec![
            Chart { class: "wide", ..chart("Loss", note, loss) },
            Chart { format: percent, ..chart("Token accuracy", "top-1", accuracy) },
            Chart { format: small, ..chart("Learning rate", "", rate) },
            Chart {
                may_be_logarithmic: true,
                ..chart("Gradient norm", "before clipping", lines(of(|s| s.grad_norm)))
            },
            chart("Update size", "relative to the adapter", lines(of(|s| s.update_ratio))),
            Chart { class: "wide low", from_zero: true, ..chart("Throughput", "tokens per second", speed) },
        ];
        charts.splice(1..1, preference::charts(h, last_step));
        charts.splice(0..0, rewards::charts(h, last_step));
        format!("<div class=charts>{}</div>\n", charts.iter().map(Chart::html).collect::<String>())
    }

    fn sources(&self) -> String {
        let Some(last) = self.last_evaluation().filter(|e| !e.sources.is_empty()) else {
            return String::new();
        };
        let first = self.history.evaluation(0);
        let mut rows = String::new();
        for source in &last.sources {
            let before = first.and_then(|e| e.sources.iter().find(|s| s.source == source.source));
            let cell = |of: &dyn Fn(&Scores) -> String| {
                let before = before.map_or(String::new(), |b| format!("{} → ", of(&b.scores)));
                format!("<td>{before}{}</td>", of(&source.scores))
            };
            let _ = write!(
                rows,
                "<tr><td>{}</td><td>{}</td>{}{}{}</tr>",
                escape(&source.source),
                grouped(source.scores.eval_tokens),
                cell(&|s| number(s.eval_loss)),
                cell(&|s| number(s.eval_perplexity)),
                cell(&|s| percent(s.eval_accuracy)),
            );
        }
        format!(
            "<h2>By validation file</h2>\n<div class=\"card scroll\"><table><tr><th>file<th>tokens<th>loss<th>perplexity\
             <th>accuracy</tr>{rows}</table></div>\n"
        )
    }

    fn notices(&self) -> String {
        let item = |n: &RunNotice| format!("<li><b>step {}</b>{}</li>", n.step, escape(&n.notice));
        let items: String = self.history.notices().map(item).collect();
        match items.is_empty() {
            true => String::new(),
            false => format!("<h2>Notices</h2>\n<ul class=\"card notices\">{items}</ul>\n"),
        }
    }

    fn settings(&self) -> String {
        let Ok(Value::Object(sections)) = serde_json::to_value(self.recipe) else { return String::new() };
        let mut html = String::new();
        for (name, keys) in sections {
            let Value::Object(keys) = keys else { continue };
            let row = |(key, value): (&String, &Value)| {
                let text = match value {
                    Value::String(text) => text.clone(),
                    Value::Array(items) => {
                        let text = |v: &Value| v.as_str().map_or(v.to_string(), str::to_owned);
                        items.iter().map(text).collect::<Vec<_>>().join(", ")
                    }
                    Value::Number(n) if n.is_f64() => n.as_f64().map_or(String::new(), setting),
                    other => other.to_string(),
                };
                let text = if text.is_empty() { "none".into() } else { escape(&text) };
                format!("<div><dt>{key}</dt><dd>{text}</dd></div>")
            };
            let rows: String = keys.iter().map(row).collect();
            let _ = write!(html, "<section class=card><h3>{name}</h3><dl>{rows}</dl></section>");
        }
        format!("<h2>Settings</h2>\n<div class=settings>{html}</div>\n")
    }

    fn facts(&self) -> String {
        let code = |text: &str| format!("<code>{text}</code>");
        let mebibytes = self.planned_bytes as f64 / f64::from(1 << 20);
        let mut facts = vec![
            ("Device", escape(&self.device)),
            ("Device memory", format!("{} MiB planned", grouped(mebibytes.round() as usize))),
            ("Trainable parameters", grouped(self.parameters)),
            (
                "Samples",
                format!(
                    "{} for training, {} for validation",
                    grouped(self.train_samples),
                    grouped(self.validation_samples)
                ),
            ),
            ("Digest of the base", code(&self.identity.base)),
            ("Digest of the tokenizer", code(&self.identity.tokenizer)),
            ("Digest of the training samples", code(&self.identity.train)),
            ("Digest of the validation samples", code(&self.identity.validation)),
        ];
        if let (Some(digest), Some(step)) = (&self.adapter_digest, self.kept) {
            facts.push(("Digest of the adapter", format!("{} (after step {step})", code(digest))));
        }
        let row = |(name, value): &(&str, String)| format!("<div><dt>{name}</dt><dd>{value}</dd></div>");
        let rows: String = facts.iter().map(row).collect();
        format!("<h2>Details</h2>\n<dl class=\"card facts\">{rows}</dl>\n")
    }
}

/// A self-contained page. `title` and `body` are HTML.
fn page(title: &str, body: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<meta name=viewport \
         content=\"width=device-width, initial-scale=1\">\n<title>{title} · rullama-train</title>\n<style>\n{STYLE}</style>\n\
         <main>\n{body}<footer>Written by rullama-train {version}.</footer>\n</main>\n<script>\n{SCRIPT}</script>\n"
    )
}

/// The mean over a fortieth of the points to either side of each point. Unlike a running mean it does not lag.
fn centred_mean(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let reach = points.len().div_ceil(40);
    let mut sums = vec![0.0];
    points.iter().for_each(|(_, value)| sums.push(sums[sums.len() - 1] + value));
    let mean = |(i, &(step, _)): (usize, &(f64, f64))| {
        // Equally far to both sides, because otherwise the ends would be biased; but never over very few points.
        let reach = reach.min(i).min(points.len() - 1 - i).max(reach / 4);
        let first = i.saturating_sub(reach);
        let end = (i + reach + 1).min(points.len());
        (step, (sums[end] - sums[first]) / (end - first) as f64)
    };
    points.iter().enumerate().map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_unbiased_at_the_ends() {
        let line: Vec<(f64, f64)> = (0..100).map(|i| (f64::from(i), 3.0 * f64::from(i))).collect();
        for ((step, value), (at, mean)) in line.iter().zip(centred_mean(&line)) {
            assert!(*step == at && (value - mean).abs() < 1e-9, "{step}: {value}, {mean}");
        }
        assert_eq!(centred_mean(&[(1.0, 1.0), (2.0, 4.0), (3.0, 1.0)]), [(1.0, 1.0), (2.0, 2.0), (3.0, 1.0)]);
        assert_eq!(centred_mean(&[]), []);
    }
}
