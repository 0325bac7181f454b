//! From the losses of rows to the log-probabilities of samples, and from those to the coefficients of rows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::preference::softplus;
use super::score::Score;
use super::{Preference, Scored};
use crate::data::batch::{Compared, Comparison, MicroBatch};

/// Sums over the pairs or rated samples of a step or of a validation file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    loss: f64,
    nll: f64,
    units: usize,
    kl: Option<f64>,
    odds: Option<[f64; 2]>,
    rewards: [f64; 2],
    logps: [f64; 2],
    samples: [usize; 2],
    /// Pairs whose chosen answer has the higher reward, and pairs in all.
    ranked: [usize; 2],
}

impl Tally {
    /// Starts the sums of a step. `kl`: the estimate of how far the model has moved, if the objective needs it.
    pub fn new(kl: Option<f64>) -> Tally {
        Tally { kl, ..Tally::default() }
    }

    /// Adds pairs, chosen first, or rated samples. Returns the derivative of the loss of each one's pair, or of its own, with respect
    /// to the log-probability of its answer.
    pub fn add(&mut self, preference: &Preference, scores: &[Score], samples: &[Compared]) -> Vec<f64> {
        debug_assert_eq!(scores.len(), samples.len(), "every sample has loss rows");
        let scored = scores.iter().zip(samples);
        let scored: Vec<Scored> =
            scored.map(|(&score, &Compared { side, reference })| Scored { side, score, reference }).collect();
        let mut slopes = Vec::with_capacity(scored.len());
        for unit in scored.chunks(if preference.is_rated() { 1 } else { 2 }) {
            let judged = preference.judge(unit, self.kl.unwrap_or(0.0));
            self.unit(preference, unit, judged.loss, judged.log_odds);
            slopes.extend(judged.slopes.iter().take(unit.len()));
        }
        slopes
    }

    /// Adds the samples of a micro-batch, and returns the coefficient of each of its rows: the gradient of the step's loss
    /// with respect to the row's loss.
    pub fn coefficients(
        &mut self,
        preference: &Preference,
        batch: &MicroBatch,
        losses: &[f32],
        samples: &[Compared],
        comparison: &Comparison,
    ) -> Vec<f32> {
        let scores = Score::of(batch, losses);
        let slopes = self.add(preference, &scores, samples);
        let nll_weight = preference.nll_weight() / comparison.good_tokens.max(1) as f64;
        let mut coefficients = Vec::with_capacity(losses.len());
        for ((sample, score), slope) in samples.iter().zip(scores).zip(slopes) {
            let answer = -slope / comparison.units as f64;
            let nll = if sample.side.is_good() { nll_weight } else { 0.0 };
            for _ in 0..score.prompt_tokens + score.tokens {
                let in_prompt = batch.in_prompt.get(coefficients.len()) == Some(&true);
                coefficients.push((if in_prompt { nll } else { answer + nll }) as f32);
            }
        }
        coefficients
    }

    fn unit(&mut self, preference: &Preference, unit: &[Scored], loss: f64, log_odds: Option<f64>) {
        self.loss += loss;
        self.units += 1;
        if let Some(odds) = log_odds {
            let sums = self.odds.get_or_insert([0.0; 2]);
            sums[0] -= softplus(-odds);
            sums[1] += odds;
        }
        for sample in unit {
            let side = usize::from(!sample.side.is_good());
            self.rewards[side] += preference.reward(sample);
            self.logps[side] += preference.logp(sample);
            self.samples[side] += 1;
            if side == 0 {
                self.nll -= sample.score.logp + sample.score.prompt_logp;
            }
        }
        if let [chosen, rejected] = unit {
            self.ranked[0] += usize::from(preference.reward(chosen) > preference.reward(rejected));
            self.ranked[1] += 1;
        }
    }

    /// The mean loss, where the good samples have `good_tokens` loss tokens.
    pub fn loss(&self, preference: &Preference, good_tokens: usize) -> f64 {
        let nll = preference.nll_weight() * self.nll / good_tokens.max(1) as f64;
        self.loss / self.units.max(1) as f64 + nll
    }

    /// The means that TRL reports.
    pub fn metrics(&self, preference: &Preference, good_tokens: usize) -> PreferenceMetrics {
        let mean = |sums: [f64; 2], side: usize| {
            (self.samples[side] > 0).then(|| sums[side] / self.samples[side] as f64)
        };
        let [chosen, rejected] = [0, 1].map(|side| mean(self.rewards, side));
        let per_pair = |sum: f64| sum / self.units.max(1) as f64;
        PreferenceMetrics {
            rewards_chosen: chosen,
            rewards_rejected: rejected,
            rewards_accuracies: (self.ranked[1] > 0).then(|| self.ranked[0] as f64 / self.ranked[1] as f64),
            rewards_margins: chosen.zip(rejected).map(|(chosen, rejected)| chosen - rejected),
            logps_chosen: mean(self.logps, 0),
            logps_rejected: mean(self.logps, 1),
            kl: self.kl,
            nll_loss: (preference.nll_weight() > 0.0 && good_tokens > 0)
                .then(|| self.nll / good_tokens as f64),
            log_odds_ratio: self.odds.map(|sums| per_pair(sums[0])),
            log_odds_chosen: self.odds.map(|sums| per_pair(sums[1])),
            ..PreferenceMetrics::default()
        }
    }
}

/// Measurements of a step or an evaluation that compares samples, under the names that TRL gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PreferenceMetrics {
    /// Mean reward of the good answers: `beta` times the change of their log-probability since the start.
    #[serde(rename = "rewards/chosen", default, skip_serializing_if = "Option::is_none")]
    pub rewards_chosen: Option<f64>,
    /// Mean reward of the bad answers.
    #[serde(rename = "rewards/rejected", default, skip_serializing_if = "Option::is_none")]
    pub rewards_rejected: Option<f64>,
    /// Fraction of the pairs whose chosen answer has the higher reward.
    #[serde(rename = "rewards/accuracies", default, skip_serializing_if = "Option::is_none")]
    pub rewards_accuracies: Option<f64>,
    /// Difference of the two mean rewards.
    #[serde(rename = "rewards/margins", default, skip_serializing_if = "Option::is_none")]
    pub rewards_margins: Option<f64>,
    /// Mean log-probability of the good answers.
    #[serde(rename = "logps/chosen", default, skip_serializing_if = "Option::is_none")]
    pub logps_chosen: Option<f64>,
    /// Mean log-probability of the bad answers.
    #[serde(rename = "logps/rejected", default, skip_serializing_if = "Option::is_none")]
    pub logps_rejected: Option<f64>,
    /// KTO's estimate of how far the model has moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<f64>,
    /// Mean cross entropy of the good samples, where it is part of the loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nll_loss: Option<f64>,
    /// ORPO's mean logarithm of the sigmoid of the log-odds ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_odds_ratio: Option<f64>,
    /// ORPO's mean log-odds ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_odds_chosen: Option<f64>,
    /// Mean divergence from the teacher, for objectives that have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distillation_loss: Option<f64>,
    /// Fraction of loss tokens at whose place the model and its teacher find the same token the likeliest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher_agreement: Option<f64>,
}

impl PreferenceMetrics {
    /// Every metric with its name, in order; `None` where it does not apply.
    pub fn named(&self) -> [(&'static str, Option<f64>); 12] {
        [
            ("rewards/chosen", self.rewards_chosen),
            ("rewards/rejected", self.rewards_rejected),
            ("rewards/accuracies", self.rewards_accuracies),
            ("rewards/margins", self.rewards_margins),
            ("logps/chosen", self.logps_chosen),
            ("logps/rejected", self.logps_rejected),
            ("kl", self.kl),
            ("nll_loss", self.nll_loss),
            ("log_odds_ratio", self.log_odds_ratio),
            ("log_odds_chosen", self.log_odds_chosen),
            ("distillation_loss", self.distillation_loss),
            ("teacher_agreement", self.teacher_agreement),
        ]
    }

    /// The metrics of an evaluation, under names that begin with `eval_`.
    pub fn of_evaluation(&self) -> BTreeMap<String, f64> {
        let named = self.named().into_iter();
        named.filter_map(|(name, value)| Some((format!("eval_{name}"), value?))).collect()
    }
}
