//! Measurements of a run, one JSON object per line: `metrics.jsonl` (identical bytes in every run of a recipe on a device)
//! and `timing.jsonl` (how long the steps of this run took).

mod effects;
mod history;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use web_time::{SystemTime, UNIX_EPOCH};

use super::answers::Answer;
use crate::talk::ending::Ending;
use crate::talk::metrics::Metric;
use crate::train::objective::PreferenceMetrics;
use crate::train::{LossTotals, StepReport};

pub use effects::{Effects, GeneralReply, Shift, TOLERATED, new_loops};
pub use history::History;

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum MetricsEvent {
    /// An optimizer step.
    Step(StepMetrics),
    /// Validation and replies.
    Evaluation(Evaluation),
    /// The effects of the trained adapter, after the last step.
    Effects(Effects),
    /// A warning about the run.
    Notice(RunNotice),
}

/// Measurements of an optimizer step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepMetrics {
    /// Number of the step, from 1.
    pub step: usize,
    /// The objective before the update, for examples the mean loss over the loss tokens; `None` where it is not finite.
    pub loss: Option<f64>,
    /// Fraction of loss tokens whose target was the most likely token.
    pub accuracy: Option<f64>,
    /// L2 norm of the gradient before clipping; `None` where it is not finite.
    pub grad_norm: Option<f64>,
    /// L2 norm of the update divided by that of the adapter.
    pub update_ratio: Option<f64>,
    /// Learning rate of the step.
    pub learning_rate: f64,
    /// Tokens that went through the model.
    pub tokens: usize,
    /// Measurements of the comparisons, for objectives that compare samples.
    #[serde(flatten)]
    pub preference: PreferenceMetrics,
    /// Measurements of completions, under TRL's names, for objectives that learn from rewards.
    #[serde(flatten, deserialize_with = "of_comparisons")]
    pub rewards: BTreeMap<String, f64>,
    /// Whether the step was skipped: the adapter was not updated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
}

impl StepMetrics {
    /// A step that updated the adapter.
    pub fn taken(step: usize, report: &StepReport, learning_rate: f64, tokens: usize) -> StepMetrics {
        StepMetrics {
            step,
            loss: finite(report.loss),
            accuracy: finite(report.accuracy),
            grad_norm: finite(report.grad_norm),
            update_ratio: finite(report.update_ratio),
            learning_rate,
            tokens,
            preference: report.preference,
            rewards: report.rewards.clone(),
            skipped: false,
        }
    }

    /// A step that was skipped because a value was not finite.
    pub fn skipped(step: usize, loss: f64, grad_norm: f64, learning_rate: f64, tokens: usize) -> StepMetrics {
        StepMetrics {
            step,
            loss: finite(loss),
            accuracy: None,
            grad_norm: finite(grad_norm),
            update_ratio: None,
            learning_rate,
            tokens,
            preference: PreferenceMetrics::default(),
            rewards: BTreeMap::new(),
            skipped: true,
        }
    }
}

fn finite(x: f64) -> Option<f64> {
    x.is_finite().then_some(x)
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// Validation scores and replies after an optimizer step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Steps so far; 0 before the first.
    pub step: usize,
    /// Scores over all validation samples; `None` where there are none.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub scores: Option<Scores>,
    /// Measurements of the comparisons, under TRL's names: `eval_rewards/margins`.
    #[serde(flatten, deserialize_with = "of_comparisons")]
    pub preference: BTreeMap<String, f64>,
    /// Scores per validation file, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceScores>,
    /// Mean of each of the recipe's metrics over generated answers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<Metric, f64>,
    /// Number of these answers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub metric_samples: usize,
    /// Replies to the recipe's prompts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replies: Vec<SampleReply>,
}

impl Evaluation {
    /// Quality of the model, as values of which the first that differ decide: `metric`, if one is given, and the validation
    /// loss; or the reward alone, where there is one. Higher is better. `None` without validation samples.
    pub fn merit(&self, metric: Option<Metric>) -> Option<[f64; 2]> {
        if let Some(reward) = self.reward() {
            return Some([reward, 0.0]);
        }
        let first = metric.map_or(0.0, |metric| self.metrics.get(&metric).copied().unwrap_or(0.0));
        Some([first, -self.scores?.eval_loss])
    }

    /// Mean reward of completions of the validation prompts, for objectives that learn from rewards.
    pub fn reward(&self) -> Option<f64> {
        self.preference.get("eval_reward").copied()
    }

    /// The metrics as text, in the order of [`Metric::ALL`]: `exact match 98.0 %, ROUGE-L 0.991`.
    pub fn metrics_text(&self) -> String {
        let each =
            self.metrics.iter().map(|(metric, value)| format!("{} {}", metric.title(), metric.text(*value)));
        each.collect::<Vec<_>>().join(", ")
    }
}

/// Reads the numbers among the keys that have no field of their own.
fn of_comparisons<'de, D: serde::Deserializer<'de>>(keys: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let keys = BTreeMap::<String, serde_json::Value>::deserialize(keys)?;
    Ok(keys.into_iter().filter_map(|(key, value)| Some((key, value.as_f64()?))).collect())
}

/// The model's losses over some samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// The objective, for examples the mean loss over the loss tokens.
    pub eval_loss: f64,
    /// `e` to the mean loss of the loss tokens.
    pub eval_perplexity: f64,
    /// Fraction of loss tokens whose target was the most likely token.
    pub eval_accuracy: f64,
    /// Number of loss tokens.
    pub eval_tokens: usize,
}

impl From<LossTotals> for Scores {
    fn from(totals: LossTotals) -> Scores {
        Scores {
            eval_loss: totals.loss(),
            eval_perplexity: totals.perplexity(),
            eval_accuracy: totals.accuracy(),
            eval_tokens: totals.tokens,
        }
    }
}

/// The scores of one validation file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceScores {
    /// The file.
    pub source: String,
    /// Its scores.
    #[serde(flatten)]
    pub scores: Scores,
}

/// A reply to one of `eval.samples`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleReply {
    /// The user's message.
    pub prompt: String,
    /// The model's reply.
    pub reply: String,
    /// Its fault, if it does not end as it should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
}

impl SampleReply {
    /// The reply to `prompt`.
    pub fn new(prompt: String, answer: Answer) -> SampleReply {
        SampleReply { prompt, reply: answer.text, ending: answer.ending }
    }
}

/// A warning about the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunNotice {
    /// The last step before the warning.
    pub step: usize,
    /// The text.
    pub notice: String,
}

/// A line of `timing.jsonl`: how long a step took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Number of the step, from 1.
    pub step: usize,
    /// When the step ended, in seconds since 1970.
    pub time: f64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Tokens through the model per second.
    pub tokens_per_second: f64,
}

/// The current time in seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// `value` as one line of JSON, with its line break.
pub fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain values under text keys") + "\n"
}

/// Parses the lines of a file; an error gives the number of the first unreadable line.
pub fn parse<T: for<'de> Deserialize<'de>>(text: &str) -> Result<Vec<T>, String> {
    let line = |(i, line)| serde_json::from_str(line).map_err(|e| format!("line {}: {e}", i + 1));
    text.lines().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: usize, loss: f64) -> MetricsEvent {
        let report = StepReport {
            loss,
            accuracy: 0.5,
            grad_norm: 1.0,
            update_ratio: 1e-3,
            preference: Default::default(),
            rewards: BTreeMap::new(),
        };
        MetricsEvent::Step(StepMetrics::taken(step, &report, 1e-4, 100))
    }

    fn evaluation(step: usize, loss: f64) -> MetricsEvent {
        let e = LossTotals { loss_sum: 10.0 * loss, tokens: 10, right: 5, ..LossTotals::default() };
        let reply = SampleReply { prompt: "Hi?".into(), reply: "Ahoy!\n\"mate\"".into(), ending: None };
        let source = |name: &str| SourceScores { source: name.into(), scores: e.into() };
        let sources = vec![source("a.jsonl"), source("b.jsonl")];
        let metrics = BTreeMap::from([(Metric::ExactMatch, 0.5), (Metric::RougeL, 0.75)]);
        let scores = Some(e.into());
        MetricsEvent::Evaluation(Evaluation {
            step,
            scores,
            preference: BTreeMap::from([("eval_rewards/margins".into(), 0.25)]),
            sources,
            metrics,
            metric_samples: 2,
            replies: vec![reply],
        })
    }

    #[test]
    fn lines_round_trip() {
        let events = vec![
            MetricsEvent::Evaluation(Evaluation::default()),
            step(1, 0.1 + 0.2),
            MetricsEvent::Step(StepMetrics::skipped(2, f64::NAN, f64::INFINITY, 1e-4, 7)),
            MetricsEvent::Notice(RunNotice { step: 2, notice: "step 2 was skipped".into() }),
            evaluation(2, 1.0 / 3.0),
        ];
        let text: String = events.iter().map(line).collect();
        assert_eq!(parse::<MetricsEvent>(&text), Ok(events.clone()));
        assert_eq!(text.lines().count(), 5);
        assert!(
            text.contains(r#"{"event":"step","step":1,"loss":0.30000000000000004,"accuracy":0.5,"#),
            "{text}"
        );
        assert!(text.contains(r#""loss":null,"accuracy":null,"grad_norm":null,"#), "{text}");
        assert!(text.lines().next() == Some(r#"{"event":"evaluation","step":0}"#), "{text}");
        let error = parse::<MetricsEvent>(&format!("{text}{{\"event\":\"st")).expect_err("cut short");
        assert!(error.starts_with("line 6: EOF"), "{error}");
    }

    #[test]
    fn the_smoothed_loss_of_a_short_run_follows_it() {
        let mut history = History::default();
        (0..8).for_each(|n| history.push(step(n + 1, 9.73 * 0.74f64.powi(n as i32))));
        let (last, smoothed) = (9.73 * 0.74f64.powi(7), history.smoothed.expect("eight steps"));
        assert!(smoothed < 1.6 * last, "{smoothed} at a loss of {last}");
        (0..200).for_each(|n| history.push(step(n + 9, if n % 2 == 0 { 1.0 } else { 2.0 })));
        assert!(
            (history.smoothed.expect("more steps") - 1.5).abs() < 0.06,
            "a long run is smoothed as before"
        );
    }

    #[test]
    fn replaying_the_lines_restores_the_state() {
        let mut history = History::default();
        for event in [evaluation(0, 1.0), step(1, 4.0), step(2, 2.0), evaluation(2, 3.0), step(3, 2.0)] {
            history.push(event);
        }
        let [second, third] = [2.0 / 11.0, 3.0 / 12.0];
        let expected = third * (second * 4.0 + (1.0 - second) * 2.0) + (1.0 - third) * 2.0;
        assert!((history.smoothed.expect("three steps") - expected).abs() < 1e-12);
        assert_eq!(history.best, Some((2, 3.0)), "the evaluation before the first step does not count");
        history.push(evaluation(4, 3.0));
        history.push(MetricsEvent::Step(StepMetrics::skipped(5, f64::NAN, 1.0, 1e-4, 7)));
        history.push(evaluation(6, 5.0));
        assert_eq!((history.best, history.stale, history.skipped), (Some((2, 3.0)), 2, 1));
        assert_eq!(History::replay(history.events.clone(), vec![], None), history);
        history.push(evaluation(8, 2.0));
        assert_eq!((history.best, history.stale, history.evaluated), (Some((8, 2.0)), 0, Some(8)));
    }

    #[test]
    fn a_metric_decides_before_the_loss() {
        let with = |step, loss, exact: f64| {
            let MetricsEvent::Evaluation(mut event) = evaluation(step, loss) else { unreachable!() };
            event.metrics.insert(Metric::ExactMatch, exact);
            MetricsEvent::Evaluation(event)
        };
        let events = vec![
            with(2, 1.0, 0.5),
            with(4, 2.0, 0.75),
            with(6, 1.5, 0.75),
            with(8, 1.5, 0.75),
            with(9, 0.1, 0.7),
        ];
        let best = |metric| History::replay(events.clone(), vec![], metric).best;
        assert_eq!(best(Some(Metric::ExactMatch)), Some((6, 1.5)));
        assert_eq!(best(None), Some((9, 0.1)));
        let text = serde_json::to_string(&events[0]).expect("plain values");
        assert!(
            text.contains(r#""metrics":{"exact_match":0.5,"rouge_l":0.75},"metric_samples":2,"#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<MetricsEvent>(&text).expect("its own line"), events[0]);
    }
}
