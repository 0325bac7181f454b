//! Signs that a run is going wrong while its numbers are still finite: spikes, updates that are too large, a loss that
//! climbs.

use crate::run::metrics::Step;

/// Weight of what was in the running means: about the last fifty steps.
const MEMORY: f64 = 0.98;
/// Steps before anything is said: the first ones are unlike all others.
const LEAST: usize = 20;
/// Steps for which a sign is not repeated.
const QUIET: usize = 20;

/// A loss so many standard deviations above its running mean is a spike, if it is also this many times the mean.
const LOSS_DEVIATIONS: f64 = 6.0;
const LOSS_TIMES: f64 = 1.5;
/// A gradient norm so many times its running (geometric) mean is a spike.
const NORM_TIMES: f64 = 10.0;
/// An update as large as this part of the adapter replaces it rather than improves it; about 1e-3 is usual.
const LARGE_UPDATE: f64 = 0.5;
/// The running mean of the loss has climbed when it is so many times its lowest value, and this much above it.
const CLIMB_TIMES: f64 = 1.5;
const CLIMB_BY: f64 = 0.3;

/// What a sign is about.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    LossSpike,
    LossClimb,
    NormSpike,
    NoGradient,
    LargeUpdate,
}

/// Mean and variance, exponentially weighted.
#[derive(Clone, Debug, Default)]
struct Running {
    mean: f64,
    variance: f64,
    count: usize,
}

impl Running {
    fn push(&mut self, x: f64) {
        // A plain mean at first.
        let weight = (1.0 - MEMORY).max(1.0 / (self.count + 1) as f64);
        let difference = x - self.mean;
        self.mean += weight * difference;
        self.variance = (1.0 - weight) * (self.variance + weight * difference * difference);
        self.count += 1;
    }
}

/// Watches the steps of a run. Its state follows from the steps alone, so that a run that goes on is watched as before.
#[derive(Default)]
pub struct Watch {
    loss: Running,
    /// Of the logarithm.
    norm: Running,
    /// Step and value of the lowest running mean of the loss.
    lowest: Option<(usize, f64)>,
    said: Vec<(Kind, usize)>,
}

impl Watch {
    /// What is to be said of a step, mostly nothing. Steps that were left out are not looked at.
    pub fn step(&mut self, step: &Step) -> Vec<String> {
        let (Some(loss), Some(norm), false) = (step.loss, step.grad_norm, step.skipped) else {
            return Vec::new();
        };
        let mut signs = Vec::new();
        if norm == 0.0 {
            signs.push((Kind::NoGradient, "the gradient is zero: nothing is learned".to_string()));
        }
        if self.loss.count >= LEAST {
            self.spikes(loss, norm, &mut signs);
        }
        // The first steps of a fresh adapter, whose B is zero, are large beside it.
        if let Some(ratio) = step.update_ratio.filter(|r| *r > LARGE_UPDATE && step.step > LEAST) {
            let advice = "lower train.learning_rate";
            let text = format!("the update is {ratio:.2} times as large as the adapter itself; {advice}");
            signs.push((Kind::LargeUpdate, text));
        }
        self.loss.push(loss);
        if norm > 0.0 {
            self.norm.push(norm.ln());
        }
        if self.loss.count >= LEAST && self.lowest.is_none_or(|(_, lowest)| self.loss.mean < lowest) {
            self.lowest = Some((step.step, self.loss.mean));
        }
        let mut texts = Vec::new();
        for (kind, text) in signs {
            let last = self.said.iter_mut().find(|(said, _)| *said == kind);
            if last.as_ref().is_some_and(|(_, at)| step.step < *at + QUIET) {
                continue;
            }
            match last {
                Some((_, at)) => *at = step.step,
                None => self.said.push((kind, step.step)),
            }
            texts.push(text);
        }
        texts
    }

    fn spikes(&self, loss: f64, norm: f64, signs: &mut Vec<(Kind, String)>) {
        let usual = self.loss.mean;
        if loss > usual + LOSS_DEVIATIONS * self.loss.variance.sqrt() && loss > LOSS_TIMES * usual {
            let text = format!("the loss jumped to {loss:.4}; {usual:.4} is usual");
            signs.push((Kind::LossSpike, text));
        }
        let usual = self.norm.mean.exp();
        if self.norm.count >= LEAST && norm > NORM_TIMES * usual {
            let text = format!("the gradient norm jumped to {norm:.3}; {usual:.3} is usual");
            signs.push((Kind::NormSpike, text));
        }
        if let Some((step, lowest)) = self.lowest
            && self.loss.mean > CLIMB_TIMES * lowest
            && self.loss.mean > lowest + CLIMB_BY
        {
            let mean = self.loss.mean;
            let text = format!(
                "the loss climbed from {lowest:.4} (mean at step {step}) to {mean:.4}: the run may be diverging"
            );
            signs.push((Kind::LossClimb, text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(number: usize, loss: f64, grad_norm: f64, update_ratio: f64) -> Step {
        Step {
            step: number,
            loss: Some(loss),
            accuracy: Some(0.5),
            grad_norm: Some(grad_norm),
            update_ratio: Some(update_ratio),
            learning_rate: 1e-4,
            tokens: 100,
            skipped: false,
        }
    }

    /// A falling loss with noise, as training gives it; what `change` makes of a step, and what is said.
    fn watch(steps: usize, change: impl Fn(&mut Step)) -> Vec<(usize, String)> {
        let mut watch = Watch::default();
        let mut said = Vec::new();
        for n in 1..=steps {
            let noise = ((n * 7919) % 101) as f64 / 101.0 - 0.5;
            let mut step =
                step(n, 2.0 * (-(n as f64) / 200.0).exp() + 0.6 * noise + 0.5, (noise * 1.5).exp(), 1e-3);
            change(&mut step);
            said.extend(watch.step(&step).into_iter().map(|text| (n, text)));
        }
        said
    }

    #[test]
    fn a_sound_run_is_left_alone() {
        assert_eq!(watch(2000, |_| ()), []);
    }

    #[test]
    fn what_goes_wrong_is_said_once() {
        let said = watch(300, |s| {
            if s.step == 100 || s.step == 105 {
                s.loss = Some(9.0);
            }
        });
        assert_eq!(said.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [100], "{said:?}");
        assert!(said[0].1.starts_with("the loss jumped to 9.0000; 2.0"), "{said:?}");

        let said = watch(300, |s| {
            if s.step >= 200 {
                s.grad_norm = Some(40.0);
            }
        });
        assert_eq!(said[0].0, 200, "{said:?}");
        assert!(said[0].1.starts_with("the gradient norm jumped to 40.000; "), "{said:?}");
        assert!(said.len() <= 3, "it becomes usual: {said:?}");

        let said = watch(100, |s| s.update_ratio = Some(0.7));
        assert_eq!(
            said[0],
            (21, "the update is 0.70 times as large as the adapter itself; lower train.learning_rate".into())
        );
        assert_eq!(said.len(), 4, "every twenty steps: {said:?}");

        let said = watch(30, |s| s.grad_norm = Some(0.0));
        assert_eq!(said.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 21], "{said:?}");
    }

    #[test]
    fn a_loss_that_climbs_slowly_is_said() {
        let said = watch(400, |s| {
            let over = s.step.saturating_sub(200) as f64;
            s.loss = s.loss.map(|l| l + 0.01 * over);
        });
        let climbed: Vec<_> = said.iter().filter(|(_, text)| text.contains("may be diverging")).collect();
        assert!(!climbed.is_empty() && (230..400).contains(&climbed[0].0), "{said:?}");
    }

    #[test]
    fn steps_left_out_are_not_looked_at() {
        let said = watch(100, |s| {
            if s.step == 50 {
                (s.loss, s.grad_norm, s.skipped) = (None, None, true);
            }
        });
        assert_eq!(said, []);
    }
}
