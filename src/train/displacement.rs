//! Detects a preference run in which the good answers become less likely while the margins rise.

use std::collections::VecDeque;

use super::objective::PreferenceMetrics;

/// Steps at the start, whose mean counts.
const FIRST: usize = 5;
/// Recent steps, whose mean counts.
const RECENT: usize = 10;
/// The margin must have risen by this …
const RISE: f64 = 0.2;
/// … and the reward of the good answers must have fallen by this part of the rise.
const PART: f64 = 0.25;

/// Rewards at the start and of the recent steps.
#[derive(Debug, Default)]
pub struct Displacement {
    /// Sums of the reward of the good answers and of the margin, and their number.
    first: ([f64; 2], usize),
    recent: VecDeque<[f64; 2]>,
    warned: bool,
}

impl Displacement {
    /// Takes a step into account, and returns a warning, at most once.
    pub fn step(&mut self, metrics: &PreferenceMetrics) -> Option<String> {
        let values = [metrics.rewards_chosen?, metrics.rewards_margins?];
        if self.first.1 < FIRST {
            self.first.0 = [self.first.0[0] + values[0], self.first.0[1] + values[1]];
            self.first.1 += 1;
            return None;
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(values);
        let mean = |at: usize| self.recent.iter().map(|v| v[at]).sum::<f64>() / self.recent.len() as f64;
        let start = self.first.0.map(|sum| sum / FIRST as f64);
        let (fall, rise) = (start[0] - mean(0), mean(1) - start[1]);
        if self.warned || self.recent.len() < RECENT || rise < RISE || fall < PART * rise {
            return None;
        }
        self.warned = true;
        Some(format!(
            "the margin has risen by {rise:.2}, but the chosen answers have become less likely, too (their reward fell by \
             {fall:.2}): the model learns what not to say. Lower train.learning_rate, raise train.beta, or set train.sft_weight"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(chosen: f64, rejected: f64) -> Vec<usize> {
        let mut watch = Displacement::default();
        let step = |step: usize| {
            let (good, bad) = (chosen * step as f64, rejected * step as f64);
            let metrics = PreferenceMetrics {
                rewards_chosen: Some(good),
                rewards_margins: Some(good - bad),
                ..Default::default()
            };
            watch.step(&metrics).map(|_| step)
        };
        (0..60).filter_map(step).collect()
    }

    #[test]
    fn falling_chosen_answers_give_one_warning() {
        assert_eq!(run(-0.05, -0.1).len(), 1);
        assert!(run(0.05, -0.1).is_empty(), "they rise");
        assert!(run(-0.01, -0.1).is_empty(), "they hardly fall");
        assert!(run(-0.05, -0.05).is_empty(), "the margin stays");
    }
}
