//! A learning-rate range test (Smith 2017, arXiv:1506.01186): some steps with an exponentially rising rate, on an adapter that is put back
//! afterwards. The rate at which the loss is lowest, divided by a margin, is proposed for the run.

use super::Steps;
use crate::data::batch::Sample;
use crate::train::{Optimizer, TrainError, Trainer};

/// Steps of a test.
pub const STEPS: usize = 60;
/// First and last rate for AdamW, whose updates have the size of the rate, and for gradient descent.
const RATES: [[f64; 2]; 2] = [[1e-6, 1.0], [1e-3, 1e3]];
/// Weight of the past in the smoothed loss.
const SMOOTHING: f64 = 0.8;
/// The test ends where the smoothed loss is this much above its lowest value, as a share of the loss before training.
const RISEN: f64 = 0.5;
/// The loss must fall by this share, or no rate is proposed.
const LEAST_FALL: f64 = 0.02;
/// The rate with the lowest loss is this much higher than the proposed one: that loss lags behind the rate, and a run takes more steps.
const MARGIN: f64 = 8.0;

/// One step of the test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The rate of the step.
    pub learning_rate: f64,
    /// Loss of the step's batch, divided by the loss of that batch before training, so that batches of all kinds compare.
    pub loss: f64,
    /// The smoothed loss.
    pub smoothed: f64,
}

/// The result of a test.
#[derive(Clone, Debug, PartialEq)]
pub struct RangeTest {
    /// Steps with a finite loss, in order.
    pub points: Vec<Point>,
    /// Why the test ended before its last rate.
    pub stopped: Option<&'static str>,
}

/// A proposed rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proposal {
    /// The rate, with one digit.
    pub learning_rate: f64,
    /// The rate with the lowest smoothed loss.
    pub lowest_at: f64,
    /// That loss, as a share of the loss before training.
    pub lowest: f64,
}

impl RangeTest {
    /// Runs `count` steps of `steps`, from the first again after the last, and puts the adapter and the optimizer's state back.
    ///
    /// # Errors
    /// The device's error. A loss that is not finite ends the test, it is no error.
    pub async fn run(
        trainer: &Trainer<'_>,
        steps: &Steps,
        samples: &[Sample],
        optimizer: &Optimizer,
        mut progress: impl FnMut(usize),
    ) -> Result<RangeTest, TrainError> {
        let before = trainer.snapshot().await?;
        let mut losses = Vec::new();
        for index in 0..STEPS.min(steps.plans.len()) {
            let step = steps.taught(samples, index)?;
            losses.push(trainer.loss_of(&step).await?);
        }
        let result = RangeTest::rise(trainer, steps, samples, optimizer, &losses, &mut progress).await;
        trainer.restore(&before);
        result
    }

    /// The steps with a rising rate. `losses`: those of each step's batch before training.
    async fn rise(
        trainer: &Trainer<'_>,
        steps: &Steps,
        samples: &[Sample],
        optimizer: &Optimizer,
        losses: &[f64],
        progress: &mut impl FnMut(usize),
    ) -> Result<RangeTest, TrainError> {
        let mut test = RangeTest { points: Vec::new(), stopped: None };
        for number in 0..STEPS {
            let index = number % losses.len();
            let learning_rate = rate(number, optimizer.adam.is_some());
            let step = steps.taught(samples, index)?;
            match trainer.step(&step, number as u64 + 1, optimizer, learning_rate).await {
                Ok(report) if report.loss.is_finite() => test.add(learning_rate, report.loss / losses[index]),
                Ok(_) | Err(TrainError::NotFinite { .. }) => {
                    test.stopped = Some("the loss was no longer finite");
                    break;
                }
                Err(error) => return Err(error),
            }
            progress(number + 1);
            if test.has_risen() {
                test.stopped = Some("the loss had risen");
                break;
            }
        }
        Ok(test)
    }

    fn add(&mut self, learning_rate: f64, loss: f64) {
        // With the factor of Adam's moments, so that the first values count in full.
        let n = self.points.len() as i32 + 1;
        let weight = |n: i32| 1.0 - SMOOTHING.powi(n);
        let past = self.points.last().map_or(0.0, |last| last.smoothed * weight(n - 1));
        let smoothed = (SMOOTHING * past + (1.0 - SMOOTHING) * loss) / weight(n);
        self.points.push(Point { learning_rate, loss, smoothed });
    }

    fn lowest(&self) -> Option<&Point> {
        self.points.iter().min_by(|a, b| a.smoothed.total_cmp(&b.smoothed))
    }

    fn has_risen(&self) -> bool {
        let lowest = self.lowest().map_or(f64::INFINITY, |point| point.smoothed);
        self.points.last().is_some_and(|last| last.smoothed > lowest + RISEN)
    }

    /// The rate for a run, where the loss fell.
    pub fn proposal(&self) -> Option<Proposal> {
        let lowest = self.lowest().filter(|point| point.smoothed < 1.0 - LEAST_FALL)?;
        Some(Proposal {
            learning_rate: one_digit(lowest.learning_rate / MARGIN),
            lowest_at: lowest.learning_rate,
            lowest: lowest.smoothed,
        })
    }
}

/// The rate of step `number`, from 0.
fn rate(number: usize, adam: bool) -> f64 {
    let [first, last] = RATES[usize::from(!adam)];
    first * (last / first).powf(number as f64 / (STEPS - 1) as f64)
}

/// Rounds to one digit.
fn one_digit(x: f64) -> f64 {
    format!("{x:.0e}").parse().expect("a number that was formatted as one")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loss that falls from `from` on and rises from `to` on.
    fn valley(from: f64, to: f64) -> RangeTest {
        let mut test = RangeTest { points: Vec::new(), stopped: None };
        let mut loss: f64 = 1.0;
        for number in 0..STEPS {
            let rate = rate(number, true);
            loss += match rate {
                r if r < from => 0.0,
                r if r < to => -0.02,
                _ => 0.2,
            };
            test.add(rate, loss);
            if test.has_risen() {
                break;
            }
        }
        test
    }

    #[test]
    fn the_proposal_is_well_below_the_lowest_loss() {
        let test = valley(1e-4, 1e-2);
        let proposal = test.proposal().expect("the loss falls");
        // The last rate at which the loss falls, within a step of the test.
        assert!((8e-3..4e-2).contains(&proposal.lowest_at), "{proposal:?}");
        assert!((8e-4..5e-3).contains(&proposal.learning_rate), "{proposal:?}");
        assert!(test.points.len() < STEPS, "it stops once the loss has risen");
        assert_eq!(one_digit(0.00123), 1e-3);
    }

    #[test]
    fn a_loss_that_never_falls_gives_no_proposal() {
        assert_eq!(valley(1e3, 1e3).proposal(), None);
        assert_eq!(valley(1e-9, 1e-9).proposal(), None);
    }

    #[test]
    fn rates_rise_from_the_first_to_the_last() {
        for (adam, [first, last]) in [(true, RATES[0]), (false, RATES[1])] {
            assert!((rate(0, adam) / first - 1.0).abs() < 1e-9);
            assert!((rate(STEPS - 1, adam) / last - 1.0).abs() < 1e-9);
        }
    }
}
