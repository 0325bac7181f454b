//! From the losses of rows to the coefficients of rows and the measurements of a step, for completions with advantages.

use std::collections::BTreeMap;

use super::grpo::{Counts, Grpo, Judgeable, Level, TokenLosses};
use crate::data::batch::MicroBatch;
use crate::data::rollout::Rollout;

/// Sums over the completions of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grades {
    counts: Counts,
    loss: f64,
    /// Sum and number.
    divergence: [f64; 2],
    /// Ratios below, above, and either, and the number of ratios.
    clipped: [f64; 4],
    /// The least part of a completion's ratios that were below, and the largest that were above.
    extremes: Option<[f64; 2]>,
    /// Sum, number and maximum of the differences from the log-probabilities as drawn.
    drawn: [f64; 3],
}

impl Grades {
    /// No completions yet, of a step with `rollouts` in `micro_batches`.
    pub fn new(rollouts: &[Rollout], micro_batches: usize) -> Grades {
        let tokens = rollouts.iter().map(Rollout::loss_tokens).sum();
        let counts = Counts { completions: rollouts.len(), tokens, micro_batches, ..Counts::default() };
        Grades { counts, ..Grades::default() }
    }

    /// Adds the completions `rollouts` of a micro-batch, whose rows have `losses`. Returns the gradient of the objective with respect to
    /// each loss. Where completions have neither old log-probabilities nor a reference, it does not depend on the losses.
    pub fn coefficients(&mut self, grpo: &Grpo, rollouts: &[Rollout], losses: &[f32]) -> Vec<f32> {
        let mut coefficients = Vec::with_capacity(losses.len());
        let mut losses = losses;
        let of_batch = rollouts.iter().map(Rollout::loss_tokens).sum();
        for rollout in rollouts {
            let (own, others) = losses.split_at(rollout.tokens());
            losses = others;
            let logps: Vec<f64> = own.iter().map(|&loss| -f64::from(loss)).collect();
            let [old, reference] = [&rollout.old, &rollout.reference].map(|logps| wide(logps));
            let judged = grpo.judge(&Judgeable {
                advantage: rollout.advantage,
                counts: rollout.counts,
                logps: &logps,
                old: old.as_deref(),
                reference: reference.as_deref(),
            });
            let own = rollout.loss_tokens();
            let weight = grpo.weight(Counts { of_batch, own, ..self.counts });
            let weight = if rollout.counts { weight } else { 0.0 };
            // A loss is a negative log-probability.
            coefficients.extend(judged.slopes.iter().map(|slope| (-slope * weight) as f32));
            self.loss += weight * judged.losses.iter().sum::<f64>();
            self.measure(grpo, rollout, &judged);
            self.compare(rollout, &logps);
        }
        coefficients
    }

    fn measure(&mut self, grpo: &Grpo, rollout: &Rollout, judged: &TokenLosses) {
        if rollout.counts {
            self.divergence[0] += judged.divergences.iter().sum::<f64>();
            self.divergence[1] += judged.divergences.len() as f64;
        }
        if !rollout.counts && grpo.level == Level::Token {
            return;
        }
        let (low, high) = match grpo.clips() {
            true => (1.0 - grpo.epsilon, 1.0 + grpo.epsilon_high),
            false => (f64::NEG_INFINITY, grpo.epsilon_high),
        };
        let part = |is: &dyn Fn(f64) -> bool| judged.ratios.iter().filter(|ratio| is(**ratio)).count() as f64;
        let below = if rollout.advantage < 0.0 { part(&|ratio| ratio < low) } else { 0.0 };
        let above = if rollout.advantage > 0.0 { part(&|ratio| ratio > high) } else { 0.0 };
        let count = judged.ratios.len() as f64;
        let found = [below, above, below + above, count];
        self.clipped.iter_mut().zip(found).for_each(|(sum, found)| *sum += found);
        let [least, most] = self.extremes.unwrap_or([f64::INFINITY, 0.0]);
        self.extremes = Some([least.min(below / count), most.max(above / count)]);
    }

    fn compare(&mut self, rollout: &Rollout, logps: &[f64]) {
        // Later steps with the same completions have another model.
        if rollout.old.is_empty() {
            for (drawn, logp) in rollout.sampled.iter().zip(logps) {
                let difference = (f64::from(*drawn) - logp).abs();
                let [sum, count, most] = self.drawn;
                self.drawn = [sum + difference, count + 1.0, most.max(difference)];
            }
        }
    }

    /// The loss of the step.
    pub fn loss(&self) -> f64 {
        self.loss
    }

    /// Mean divergence from the reference, if there is one.
    pub fn kl(&self) -> Option<f64> {
        let [sum, count] = self.divergence;
        (count > 0.0).then(|| sum / count)
    }

    /// The measurements that TRL reports, besides the divergence.
    pub fn metrics(&self, grpo: &Grpo) -> BTreeMap<String, f64> {
        let mut metrics = BTreeMap::new();
        let mut add = |name: &str, value: f64| metrics.insert(name.to_owned(), value);
        let [low, high, region, count] = self.clipped;
        let mean = |sum: f64| sum / count.max(1.0);
        if grpo.clips() {
            add("clip_ratio/low_mean", mean(low));
            add("clip_ratio/high_mean", mean(high));
            add("clip_ratio/region_mean", mean(region));
            let [least, most] = self.extremes.unwrap_or_default();
            add("clip_ratio/low_min", least);
            add("clip_ratio/high_max", most);
        } else {
            add("cispo_clip_ratio", mean(high));
        }
        let [sum, count, most] = self.drawn;
        if count > 0.0 {
            add("sampling/sampling_logp_difference/mean", sum / count);
            add("sampling/sampling_logp_difference/max", most);
        }
        metrics
    }
}

/// In f64; `None` if there are none.
fn wide(logps: &[f32]) -> Option<Vec<f64>> {
    (!logps.is_empty()).then(|| logps.iter().map(|&logp| f64::from(logp)).collect())
}

/// The completions of each micro-batch of a step, in order.
pub fn by_batch<'r>(
    rollouts: &'r [Rollout],
    micro_batches: &'r [MicroBatch],
) -> impl Iterator<Item = &'r [Rollout]> {
    let mut rest = rollouts;
    micro_batches.iter().map(move |batch| {
        let (own, others) = rest.split_at(batch.samples());
        rest = others;
        own
    })
}
