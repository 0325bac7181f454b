//! Detects a run whose loss has risen far above its start and stays there.

use std::collections::VecDeque;

/// Steps at the start, of which the highest loss counts.
const FIRST: usize = 3;
/// Recent steps after those, whose mean counts.
const RECENT: usize = 10;
/// The recent mean must exceed the start by this many nats …
const RISE_BY: f64 = 2.0;
/// … and by this fraction of the start.
const RISE_RATIO: f64 = 0.5;

/// Losses at the start and of the recent steps.
#[derive(Debug, Default)]
pub struct Divergence {
    first: Vec<f64>,
    recent: VecDeque<f64>,
}

/// The figures of a run that has diverged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Diverged {
    /// Number of recent steps.
    pub over: usize,
    /// Their mean loss.
    pub mean: f64,
    /// Loss at the start.
    pub start: f64,
}

impl Divergence {
    /// Takes the loss of a step into account.
    pub fn step(&mut self, loss: f64) {
        if self.first.len() < FIRST {
            self.first.push(loss);
            return;
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(loss);
    }

    /// Forgets the recent steps, as their settings were others.
    pub fn settings_changed(&mut self) {
        self.recent.clear();
    }

    /// The figures, if the run has diverged. `validation`: validation loss before the first step, which counts as a start too.
    pub fn diverged(&self, validation: Option<f64>) -> Option<Diverged> {
        let start = self.first.iter().copied().chain(validation).fold(0.0, f64::max);
        let mean = self.recent.iter().sum::<f64>() / RECENT as f64;
        let limit = start + f64::max(RISE_BY, RISE_RATIO * start);
        (self.recent.len() == RECENT && mean > limit).then_some(Diverged { over: RECENT, mean, start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(losses: impl Iterator<Item = f64>) -> Divergence {
        let mut divergence = Divergence::default();
        losses.for_each(|loss| divergence.step(loss));
        divergence
    }

    #[test]
    fn a_loss_that_stays_far_above_its_start_has_diverged() {
        let rising = after([2.0, 2.1, 1.9].into_iter().chain([9.0; 10]));
        assert_eq!(rising.diverged(None), Some(Diverged { over: 10, mean: 9.0, start: 2.1 }));
        assert_eq!(rising.diverged(Some(7.0)), None, "the samples differ that much");
        assert_eq!(after([2.0, 2.1, 1.9].into_iter().chain([9.0; 9])).diverged(None), None, "too few steps");
        assert_eq!(
            after([2.0, 2.1, 1.9].into_iter().chain([4.0; 50])).diverged(None),
            None,
            "not far enough"
        );
    }

    #[test]
    fn changed_settings_get_a_new_chance() {
        let mut divergence = after([2.0; 3].into_iter().chain([9.0; 10]));
        divergence.settings_changed();
        assert_eq!(divergence.diverged(None), None);
        (0..10).for_each(|_| divergence.step(9.0));
        assert!(divergence.diverged(None).is_some());
    }
}
