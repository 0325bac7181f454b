//! What a run measures, as one JSON object a line: `metrics.jsonl` (the same bytes in every run of a recipe on a device)
//! and `timing.jsonl` (what this run took).

use serde::{Deserialize, Serialize};
use web_time::{SystemTime, UNIX_EPOCH};

use crate::train::trainer::{self, StepReport};

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// An optimizer step.
    Step(Step),
    /// Validation and replies.
    Evaluation(Evaluation),
    /// Something that the user should look at.
    Notice(Notice),
}

/// An optimizer step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// From 1.
    pub step: usize,
    /// Mean over the tokens that carry loss, before the update; `None` where it is not finite.
    pub loss: Option<f64>,
    /// Share of those tokens that were the likeliest ones.
    pub accuracy: Option<f64>,
    /// Before clipping; `None` where it is not finite.
    pub grad_norm: Option<f64>,
    /// L2 norm of the update over that of the adapter.
    pub update_ratio: Option<f64>,
    /// Of this step.
    pub learning_rate: f64,
    /// Tokens that went through the model.
    pub tokens: usize,
    /// The adapter was left as it was.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
}

impl Step {
    /// A step that moved the adapter.
    pub fn taken(step: usize, report: &StepReport, learning_rate: f64, tokens: usize) -> Step {
        let finite = |x: f64| x.is_finite().then_some(x);
        Step {
            step,
            loss: finite(report.loss),
            accuracy: finite(report.accuracy),
            grad_norm: finite(report.grad_norm),
            update_ratio: finite(report.update_ratio),
            learning_rate,
            tokens,
            skipped: false,
        }
    }

    /// A step that was left out, because something in it is not finite.
    pub fn skipped(step: usize, loss: f64, grad_norm: f64, learning_rate: f64, tokens: usize) -> Step {
        let finite = |x: f64| x.is_finite().then_some(x);
        let (loss, grad_norm) = (finite(loss), finite(grad_norm));
        Step {
            step,
            loss,
            accuracy: None,
            grad_norm,
            update_ratio: None,
            learning_rate,
            tokens,
            skipped: true,
        }
    }
}

/// Validation and replies after some optimizer step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Steps so far; 0 before the first.
    pub step: usize,
    /// Over all validation samples; `None` where there are none.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub scores: Option<Scores>,
    /// By validation file, where several are named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Source>,
    /// Replies to the recipe's prompts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replies: Vec<Reply>,
}

/// How well the model predicts some samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Mean over the tokens that carry loss.
    pub eval_loss: f64,
    /// `e` to that.
    pub eval_perplexity: f64,
    /// Share of those tokens that were the likeliest ones.
    pub eval_accuracy: f64,
    /// Their number.
    pub eval_tokens: usize,
}

impl From<trainer::Evaluation> for Scores {
    fn from(e: trainer::Evaluation) -> Scores {
        Scores {
            eval_loss: e.loss(),
            eval_perplexity: e.perplexity(),
            eval_accuracy: e.accuracy(),
            eval_tokens: e.tokens,
        }
    }
}

/// The scores of one validation file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// The file.
    pub source: String,
    /// Its scores.
    #[serde(flatten)]
    pub scores: Scores,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// What the user says.
    pub prompt: String,
    /// What the model answers.
    pub reply: String,
}

/// Something that the user should look at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// After which step.
    pub step: usize,
    /// In words.
    pub notice: String,
}

/// A line of `timing.jsonl`: what a step took here.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// From 1.
    pub step: usize,
    /// When it ended, in seconds since 1970.
    pub time: f64,
    /// What it took.
    pub seconds: f64,
    /// Tokens through the model in a second.
    pub tokens_per_second: f64,
}

/// Seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// One line of JSON, with its end.
pub fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain values under text keys") + "\n"
}

/// The lines of a file; an error names the first that cannot be read.
pub fn parse<T: for<'de> Deserialize<'de>>(text: &str) -> Result<Vec<T>, String> {
    let line = |(i, line)| serde_json::from_str(line).map_err(|e| format!("line {}: {e}", i + 1));
    text.lines().enumerate().map(line).collect()
}

/// Weight of what was in the smoothed loss.
const SMOOTHING: f64 = 0.9;

/// The next value of the exponential mean of a loss.
fn smooth(before: Option<f64>, loss: f64) -> f64 {
    before.map_or(loss, |before| SMOOTHING * before + (1.0 - SMOOTHING) * loss)
}

/// Everything that a run has measured so far, and what follows from it. A run that goes on starts from the same lines and
/// so from the same state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// In their order.
    pub events: Vec<Event>,
    /// What the steps took, as far as it is known.
    pub timing: Vec<Timing>,
    /// Exponential mean of the training loss.
    pub smoothed: Option<f64>,
    /// Step and loss of the evaluation with the lowest loss, the first of equals, without that before the first step.
    pub best: Option<(usize, f64)>,
    /// Evaluations since then.
    pub stale: usize,
    /// Steps that were left out.
    pub skipped: usize,
    /// The last step that was evaluated.
    pub evaluated: Option<usize>,
}

impl History {
    /// The state after these events.
    pub fn replay(events: Vec<Event>, timing: Vec<Timing>) -> History {
        let mut history = History { timing, ..History::default() };
        events.into_iter().for_each(|event| history.push(event));
        history
    }

    /// Adds an event.
    pub fn push(&mut self, event: Event) {
        match &event {
            Event::Step(step) if step.skipped => self.skipped += 1,
            Event::Step(step) => {
                self.smoothed = step.loss.map(|loss| smooth(self.smoothed, loss)).or(self.smoothed);
            }
            Event::Evaluation(evaluation) => {
                self.evaluated = Some(evaluation.step);
                if let (Some(scores), true) = (evaluation.scores, evaluation.step > 0) {
                    let better = self.best.is_none_or(|(_, loss)| scores.eval_loss < loss);
                    self.stale = if better { 0 } else { self.stale + 1 };
                    if better {
                        self.best = Some((evaluation.step, scores.eval_loss));
                    }
                }
            }
            Event::Notice(_) => {}
        }
        self.events.push(event);
    }

    /// The optimizer steps.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.events.iter().filter_map(|e| if let Event::Step(step) = e { Some(step) } else { None })
    }

    /// The evaluations.
    pub fn evaluations(&self) -> impl Iterator<Item = &Evaluation> {
        self.events.iter().filter_map(|e| if let Event::Evaluation(e) = e { Some(e) } else { None })
    }

    /// The evaluation after `step` steps.
    pub fn evaluation(&self, step: usize) -> Option<&Evaluation> {
        self.evaluations().find(|e| e.step == step)
    }

    /// What should be looked at.
    pub fn notices(&self) -> impl Iterator<Item = &Notice> {
        self.events.iter().filter_map(|e| if let Event::Notice(n) = e { Some(n) } else { None })
    }

    /// All lines of `metrics.jsonl` and of `timing.jsonl`.
    pub fn lines(&self) -> (String, String) {
        (self.events.iter().map(line).collect(), self.timing.iter().map(line).collect())
    }

    /// Seconds that all steps took, and tokens a second.
    pub fn speed(&self) -> (f64, f64) {
        let seconds: f64 = self.timing.iter().map(|t| t.seconds).sum();
        let tokens: f64 = self.timing.iter().map(|t| t.tokens_per_second * t.seconds).sum();
        (seconds, tokens / seconds.max(f64::MIN_POSITIVE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: usize, loss: f64) -> Event {
        let report = StepReport { loss, accuracy: 0.5, grad_norm: 1.0, update_ratio: 1e-3 };
        Event::Step(Step::taken(step, &report, 1e-4, 100))
    }

    fn evaluation(step: usize, loss: f64) -> Event {
        let e = trainer::Evaluation { loss_sum: 10.0 * loss, tokens: 10, right: 5, not_finite: 0 };
        let reply = Reply { prompt: "Hi?".into(), reply: "Ahoy!\n\"mate\"".into() };
        let source = |name: &str| Source { source: name.into(), scores: e.into() };
        let sources = vec![source("a.jsonl"), source("b.jsonl")];
        Event::Evaluation(Evaluation { step, scores: Some(e.into()), sources, replies: vec![reply] })
    }

    #[test]
    fn lines_survive_being_read() {
        let events = vec![
            Event::Evaluation(Evaluation { step: 0, scores: None, sources: vec![], replies: vec![] }),
            step(1, 0.1 + 0.2),
            Event::Step(Step::skipped(2, f64::NAN, f64::INFINITY, 1e-4, 7)),
            Event::Notice(Notice { step: 2, notice: "step 2 was left out".into() }),
            evaluation(2, 1.0 / 3.0),
        ];
        let text: String = events.iter().map(line).collect();
        assert_eq!(parse::<Event>(&text), Ok(events.clone()));
        assert_eq!(text.lines().count(), 5);
        assert!(
            text.contains(r#"{"event":"step","step":1,"loss":0.30000000000000004,"accuracy":0.5,"#),
            "{text}"
        );
        assert!(text.contains(r#""loss":null,"accuracy":null,"grad_norm":null,"#), "{text}");
        assert!(text.lines().next() == Some(r#"{"event":"evaluation","step":0}"#), "{text}");
        let error = parse::<Event>(&format!("{text}{{\"event\":\"st")).expect_err("cut short");
        assert!(error.starts_with("line 6: EOF"), "{error}");
    }

    #[test]
    fn the_state_follows_from_the_lines() {
        let mut history = History::default();
        for event in [evaluation(0, 1.0), step(1, 4.0), step(2, 2.0), evaluation(2, 3.0), step(3, 2.0)] {
            history.push(event);
        }
        let expected = 0.9 * (0.9 * 4.0 + 0.1 * 2.0) + 0.1 * 2.0;
        assert!((history.smoothed.expect("two steps") - expected).abs() < 1e-12);
        assert_eq!(history.best, Some((2, 3.0)), "what was before the first step does not count");
        history.push(evaluation(4, 3.0));
        history.push(Event::Step(Step::skipped(5, f64::NAN, 1.0, 1e-4, 7)));
        history.push(evaluation(6, 5.0));
        assert_eq!((history.best, history.stale, history.skipped), (Some((2, 3.0)), 2, 1));
        assert_eq!(History::replay(history.events.clone(), vec![]), history);
        history.push(evaluation(8, 2.0));
        assert_eq!((history.best, history.stale, history.evaluated), (Some((8, 2.0)), 0, Some(8)));
    }
}
