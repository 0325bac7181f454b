//! Everything that a run has measured so far, and the state that follows from it.

use crate::talk::metrics::Metric;

use super::{Effects, Evaluation, MetricsEvent, RunNotice, StepMetrics, Timing, line};

/// Weight of the previous value in the smoothed loss, of a long run.
const SMOOTHING: f64 = 0.9;

/// The next value of the exponential moving average of a loss, after `count` losses. The weight of the past grows with the run, as with
/// `num_updates` of TensorFlow's `ExponentialMovingAverage`: with a constant one, a short run would end near its first loss.
fn smooth(before: Option<f64>, count: usize, loss: f64) -> f64 {
    let count = count as f64;
    let weight = SMOOTHING.min((1.0 + count) / (10.0 + count));
    before.map_or(loss, |before| weight * before + (1.0 - weight) * loss)
}

/// Everything that a run has measured so far, and the state that follows from it. A resumed run replays the same lines and
/// so gets the same state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// All events, in order.
    pub events: Vec<MetricsEvent>,
    /// Durations of the steps, as far as they are known.
    pub timing: Vec<Timing>,
    /// Exponential moving average of the training loss.
    pub smoothed: Option<f64>,
    /// Losses in that average.
    pub(crate) losses: usize,
    /// The metric that decides which evaluation is best; `None`: the validation loss.
    pub best_metric: Option<Metric>,
    /// Step and loss of the best evaluation by [`Evaluation::merit`], the negative reward where that decides; of equal ones, the first. The
    /// evaluation before the first step does not count.
    pub best: Option<(usize, f64)>,
    /// Evaluations since the best one.
    pub stale: usize,
    /// Skipped steps.
    pub skipped: usize,
    /// The last step that was evaluated.
    pub evaluated: Option<usize>,
}

impl History {
    /// Restores the state after these events.
    pub fn replay(events: Vec<MetricsEvent>, timing: Vec<Timing>, best_metric: Option<Metric>) -> History {
        let mut history = History { timing, best_metric, ..History::default() };
        events.into_iter().for_each(|event| history.push(event));
        history
    }

    /// Adds an event.
    pub fn push(&mut self, event: MetricsEvent) {
        match &event {
            MetricsEvent::Step(step) if step.skipped => self.skipped += 1,
            MetricsEvent::Step(step) => {
                if let Some(loss) = step.loss {
                    self.smoothed = Some(smooth(self.smoothed, self.losses, loss));
                    self.losses += 1;
                }
            }
            MetricsEvent::Evaluation(evaluation) => {
                self.evaluated = Some(evaluation.step);
                let merit = |e: &Evaluation| e.merit(self.best_metric);
                if let (Some(found), true) = (merit(evaluation), evaluation.step > 0) {
                    let best = self.best.and_then(|(step, _)| merit(self.evaluation(step)?));
                    let better = Some(found) > best;
                    self.stale = if better { 0 } else { self.stale + 1 };
                    if better {
                        let loss = evaluation.scores.map_or(-found[0], |scores| scores.eval_loss);
                        self.best = Some((evaluation.step, loss));
                    }
                }
            }
            MetricsEvent::Effects(_) | MetricsEvent::Notice(_) => {}
        }
        self.events.push(event);
    }

    /// The optimizer steps.
    pub fn steps(&self) -> impl Iterator<Item = &StepMetrics> {
        self.events.iter().filter_map(|e| if let MetricsEvent::Step(step) = e { Some(step) } else { None })
    }

    /// The evaluations.
    pub fn evaluations(&self) -> impl Iterator<Item = &Evaluation> {
        self.events.iter().filter_map(|e| if let MetricsEvent::Evaluation(e) = e { Some(e) } else { None })
    }

    /// The evaluation after `step` steps.
    pub fn evaluation(&self, step: usize) -> Option<&Evaluation> {
        self.evaluations().find(|e| e.step == step)
    }

    /// The effects of the trained adapter; `None` before the end of the run.
    pub fn effects(&self) -> Option<&Effects> {
        let effects = |e: &'_ MetricsEvent| matches!(e, MetricsEvent::Effects(_));
        match self.events.iter().rfind(|e| effects(e)) {
            Some(MetricsEvent::Effects(effects)) => Some(effects),
            _ => None,
        }
    }

    /// The warnings.
    pub fn notices(&self) -> impl Iterator<Item = &RunNotice> {
        self.events.iter().filter_map(|e| if let MetricsEvent::Notice(n) = e { Some(n) } else { None })
    }

    /// The contents of `metrics.jsonl` and of `timing.jsonl`.
    pub fn lines(&self) -> (String, String) {
        (self.events.iter().map(line).collect(), self.timing.iter().map(line).collect())
    }

    /// Duration of all steps in seconds, and tokens per second.
    pub fn speed(&self) -> (f64, f64) {
        let seconds: f64 = self.timing.iter().map(|t| t.seconds).sum();
        let tokens: f64 = self.timing.iter().map(|t| t.tokens_per_second * t.seconds).sum();
        (seconds, tokens / seconds.max(f64::MIN_POSITIVE))
    }
}
