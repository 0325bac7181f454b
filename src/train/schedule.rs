//! The learning rate of each optimizer step, as the schedulers of transformers compute it.
//!
//! Must match transformers `src/transformers/optimization.py`: `_get_constant_schedule_with_warmup_lr_lambda`,
//! `_get_linear_schedule_with_warmup_lr_lambda`, `_get_cosine_schedule_with_warmup_lr_lambda` and, with a
//! minimum, `_get_cosine_with_min_lr_schedule_with_warmup_lr_lambda`. With a warm-up, step 0 has a rate of 0.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

/// Shape of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrScheduler {
    /// Half a cosine from the peak to the minimum.
    Cosine,
    /// A straight line from the peak to the minimum.
    Linear,
    /// The peak.
    Constant,
}

/// A warm-up, then a curve from the peak down to the minimum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Shape after the warm-up.
    pub shape: LrScheduler,
    /// Peak learning rate.
    pub peak: f64,
    /// Lowest learning rate after the warm-up, as a fraction of the peak.
    pub min_lr_ratio: f64,
    /// Optimizer steps of warm-up.
    pub warmup_steps: usize,
    /// Optimizer steps of the whole run.
    pub total_steps: usize,
}

impl Schedule {
    /// `ceil(ratio·total_steps)` steps of warm-up, as transformers' `TrainingArguments.get_warmup_steps`.
    pub fn warmup_steps(ratio: f64, total_steps: usize) -> usize {
        (ratio * total_steps as f64).ceil() as usize
    }

    /// Learning rate of optimizer step `step`, counted from 0.
    pub fn learning_rate(&self, step: usize) -> f64 {
        self.peak * self.factor(step)
    }

    /// The learning rate as a fraction of the peak.
    pub fn factor(&self, step: usize) -> f64 {
        let warmup = self.warmup_steps;
        if step < warmup {
            return step as f64 / warmup.max(1) as f64;
        }
        let steps_after_warmup = self.total_steps.saturating_sub(warmup).max(1) as f64;
        let progress = ((step - warmup) as f64 / steps_after_warmup).min(1.0);
        let factor = match self.shape {
            LrScheduler::Constant => 1.0,
            LrScheduler::Linear => 1.0 - progress,
            LrScheduler::Cosine => 0.5 * (1.0 + (PI * progress).cos()),
        };
        self.min_lr_ratio + (1.0 - self.min_lr_ratio) * factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(shape: LrScheduler, min_lr_ratio: f64, warmup_steps: usize, total_steps: usize) -> Vec<f64> {
        let schedule = Schedule { shape, peak: 1.0, min_lr_ratio, warmup_steps, total_steps };
        (0..=total_steps).map(|step| schedule.learning_rate(step)).collect()
    }

    /// f64 rounding only.
    fn assert_close(found: &[f64], expected: &[f64]) {
        let alike = found.iter().zip(expected).all(|(f, e)| (f - e).abs() <= 1e-15);
        assert!(found.len() == expected.len() && alike, "found {found:?}\nexpected {expected:?}");
    }

    #[test]
    fn constant_matches_transformers() {
        // get_constant_schedule_with_warmup(num_warmup_steps=2)
        assert_close(&factors(LrScheduler::Constant, 0.0, 2, 4), &[0.0, 0.5, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn linear_matches_transformers() {
        // transformers tests/optimization/test_optimization.py: get_linear_schedule_with_warmup(2, 10) at lr 10
        // gives 0, 5, 10, 8.75, 7.5, 6.25, 5, 3.75, 2.5, 1.25; and 0 at the end.
        let expected = [0.0, 0.5, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0];
        assert_close(&factors(LrScheduler::Linear, 0.0, 2, 10), &expected);
    }

    #[test]
    fn cosine_matches_transformers() {
        // (1 + cos(π·k/8))/2 for k = 0..8; the same test file prints them at lr 10, to two places:
        // 0, 5, 10, 9.61, 8.53, 6.91, 5, 3.08, 1.46, 0.38.
        let expected = [
            0.0,
            0.5,
            1.0,
            0.961_939_766_255_643_4,
            0.853_553_390_593_273_7,
            0.691_341_716_182_544_9,
            0.5,
            0.308_658_283_817_455_1,
            0.146_446_609_406_726_24,
            0.038_060_233_744_356_63,
            0.0,
        ];
        assert_close(&factors(LrScheduler::Cosine, 0.0, 2, 10), &expected);
    }

    #[test]
    fn the_minimum_does_not_affect_the_warmup() {
        // 0.1 + 0.9·f with f = 1, 3/4, 1/2, 1/4, 0.
        let expected = [0.0, 0.5, 1.0, 0.775, 0.55, 0.325, 0.1];
        assert_close(&factors(LrScheduler::Linear, 0.1, 2, 6), &expected);
    }

    #[test]
    fn no_warmup_starts_at_the_peak() {
        assert_close(&factors(LrScheduler::Linear, 0.0, 0, 2), &[1.0, 0.5, 0.0]);
    }

    #[test]
    fn warmup_longer_than_the_run_only_climbs() {
        assert_close(&factors(LrScheduler::Cosine, 0.0, 4, 2), &[0.0, 0.25, 0.5]);
    }

    #[test]
    fn warmup_ratio_rounds_up() {
        // 0.05 · 41 = 2.05
        assert_eq!(Schedule::warmup_steps(0.05, 41), 3);
        assert_eq!(Schedule::warmup_steps(0.05, 40), 2);
    }
}
