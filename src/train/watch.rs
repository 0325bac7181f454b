//! Warnings about a run that goes wrong while its numbers are still finite: spikes, updates that are too large, a rising
//! loss.

use super::divergence::{Diverged, Divergence};

/// Weight of the previous value in the running means, which then cover about the last fifty steps.
const DECAY: f64 = 0.98;
/// Steps before the first warning: the first steps of a run are unlike all others.
const MIN_STEPS: usize = 20;
/// Steps for which a warning is not repeated.
const REPEAT_AFTER: usize = 20;

/// A loss is a spike if it is this many standard deviations above its running mean …
const SPIKE_DEVIATIONS: f64 = 6.0;
/// … and also this many times the mean.
const SPIKE_RATIO: f64 = 1.5;
/// A gradient norm is a spike if it is this many times its running geometric mean.
const NORM_SPIKE_RATIO: f64 = 10.0;
/// An update of this size relative to the adapter replaces it rather than improves it; about 1e-3 is normal.
const LARGE_UPDATE: f64 = 0.5;
/// The loss is rising if its running mean is this many times the lowest one …
const RISE_RATIO: f64 = 1.5;
/// … and also this much above it.
const RISE_BY: f64 = 0.3;

/// The observed values of a step that updated the adapter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observed {
    /// Optimizer step, from 1.
    pub step: usize,
    /// Mean loss.
    pub loss: f64,
    /// L2 norm of the gradient before clipping.
    pub grad_norm: f64,
    /// L2 norm of the update divided by that of the adapter; `None` where it is not finite.
    pub update_ratio: Option<f64>,
}

/// The subject of a warning.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    LossSpike,
    RisingLoss,
    NormSpike,
    NoGradient,
    LargeUpdate,
}

/// Exponentially weighted mean and variance.
#[derive(Clone, Debug, Default)]
struct RunningStats {
    mean: f64,
    variance: f64,
    count: usize,
}

impl RunningStats {
    fn push(&mut self, x: f64) {
        // A plain mean at first.
        let weight = (1.0 - DECAY).max(1.0 / (self.count + 1) as f64);
        let difference = x - self.mean;
        self.mean += weight * difference;
        self.variance = (1.0 - weight) * (self.variance + weight * difference * difference);
        self.count += 1;
    }
}

/// Watches the steps of a run. Its state depends on the steps alone, so a resumed run gives the same warnings.
#[derive(Default)]
pub struct Watch {
    loss: RunningStats,
    /// Statistics of the logarithm of the gradient norm.
    log_norm: RunningStats,
    /// Step and value of the lowest running mean of the loss.
    lowest: Option<(usize, f64)>,
    /// The last step at which each kind of warning was given.
    warned: Vec<(Kind, usize)>,
    divergence: Divergence,
}

impl Watch {
    /// The figures of a run that has diverged; `validation` as in [`Divergence::diverged`].
    pub fn diverged(&self, validation: Option<f64>) -> Option<Diverged> {
        self.divergence.diverged(validation)
    }

    /// Takes into account that the following steps have other settings.
    pub fn settings_changed(&mut self) {
        self.divergence.settings_changed();
    }

    /// Takes a step into account and returns warnings about it, usually none. Skipped steps must not be passed.
    pub fn step(&mut self, observed: &Observed) -> Vec<String> {
        let &Observed { step, loss, grad_norm, update_ratio } = observed;
        let mut found = Vec::new();
        if grad_norm == 0.0 {
            found.push((Kind::NoGradient, "the gradient is zero, so nothing is learned".to_string()));
        }
        if self.loss.count >= MIN_STEPS {
            self.spikes(loss, grad_norm, &mut found);
        }
        // The first updates of a new adapter, whose B is zero, are large relative to it.
        if let Some(ratio) = update_ratio.filter(|r| *r > LARGE_UPDATE && step > MIN_STEPS) {
            let text = format!(
                "the update is {ratio:.2} times as large as the adapter itself; lower train.learning_rate"
            );
            found.push((Kind::LargeUpdate, text));
        }
        self.loss.push(loss);
        self.divergence.step(loss);
        if grad_norm > 0.0 {
            self.log_norm.push(grad_norm.ln());
        }
        if self.loss.count >= MIN_STEPS && self.lowest.is_none_or(|(_, lowest)| self.loss.mean < lowest) {
            self.lowest = Some((step, self.loss.mean));
        }
        found.retain(|(kind, _)| self.is_due(*kind, step));
        found.into_iter().map(|(_, text)| text).collect()
    }

    /// Whether a warning of this kind was not given recently. If so, it counts as given now.
    fn is_due(&mut self, kind: Kind, step: usize) -> bool {
        match self.warned.iter_mut().find(|(warned, _)| *warned == kind) {
            Some((_, last)) if step < *last + REPEAT_AFTER => return false,
            Some((_, last)) => *last = step,
            None => self.warned.push((kind, step)),
        }
        true
    }

    fn spikes(&self, loss: f64, grad_norm: f64, found: &mut Vec<(Kind, String)>) {
        let mean = self.loss.mean;
        if loss > mean + SPIKE_DEVIATIONS * self.loss.variance.sqrt() && loss > SPIKE_RATIO * mean {
            let text = format!("the loss jumped to {loss:.4}; the recent mean is {mean:.4}");
            found.push((Kind::LossSpike, text));
        }
        let mean = self.log_norm.mean.exp();
        if self.log_norm.count >= MIN_STEPS && grad_norm > NORM_SPIKE_RATIO * mean {
            let text = format!("the gradient norm jumped to {grad_norm:.3}; the recent mean is {mean:.3}");
            found.push((Kind::NormSpike, text));
        }
        if let Some((step, lowest)) = self.lowest
            && self.loss.mean > RISE_RATIO * lowest
            && self.loss.mean > lowest + RISE_BY
        {
            let mean = self.loss.mean;
            let text = format!(
                "the mean loss rose from {lowest:.4} at step {step} to {mean:.4}: the run may be diverging"
            );
            found.push((Kind::RisingLoss, text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a falling loss with noise, as training gives it, with each step changed by `change`. Returns step and text of
    /// every warning.
    fn watch(steps: usize, change: impl Fn(&mut Observed)) -> Vec<(usize, String)> {
        let mut watch = Watch::default();
        let mut warnings = Vec::new();
        for step in 1..=steps {
            let noise = ((step * 7919) % 101) as f64 / 101.0 - 0.5;
            let loss = 2.0 * (-(step as f64) / 200.0).exp() + 0.6 * noise + 0.5;
            let mut observed =
                Observed { step, loss, grad_norm: (noise * 1.5).exp(), update_ratio: Some(1e-3) };
            change(&mut observed);
            warnings.extend(watch.step(&observed).into_iter().map(|text| (step, text)));
        }
        warnings
    }

    #[test]
    fn a_normal_run_gets_no_warnings() {
        assert_eq!(watch(2000, |_| ()), []);
    }

    #[test]
    fn warnings_are_not_repeated_at_once() {
        let warnings = watch(300, |s| {
            if s.step == 100 || s.step == 105 {
                s.loss = 9.0;
            }
        });
        assert_eq!(warnings.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [100], "{warnings:?}");
        assert!(
            warnings[0].1.starts_with("the loss jumped to 9.0000; the recent mean is 2.0"),
            "{warnings:?}"
        );

        let warnings = watch(300, |s| {
            if s.step >= 200 {
                s.grad_norm = 40.0;
            }
        });
        assert_eq!(warnings[0].0, 200, "{warnings:?}");
        assert!(warnings[0].1.starts_with("the gradient norm jumped to 40.000; "), "{warnings:?}");
        assert!(warnings.len() <= 3, "the running mean follows: {warnings:?}");

        let warnings = watch(100, |s| s.update_ratio = Some(0.7));
        assert_eq!(
            warnings[0],
            (21, "the update is 0.70 times as large as the adapter itself; lower train.learning_rate".into())
        );
        assert_eq!(warnings.len(), 4, "every twenty steps: {warnings:?}");

        let warnings = watch(30, |s| s.grad_norm = 0.0);
        assert_eq!(warnings.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 21], "{warnings:?}");
    }

    #[test]
    fn a_slowly_rising_loss_gives_a_warning() {
        let warnings = watch(400, |s| s.loss += 0.01 * s.step.saturating_sub(200) as f64);
        let rising: Vec<_> = warnings.iter().filter(|(_, text)| text.contains("may be diverging")).collect();
        assert!(!rising.is_empty() && (230..400).contains(&rising[0].0), "{warnings:?}");
    }
}
