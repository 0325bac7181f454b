//! Losses that compare samples, and their gradients with respect to the log-probabilities of the answers.
//!
//! Must match TRL 1.16: `DPOTrainer._compute_loss` (trl/trainer/dpo_trainer.py), `KTOTrainer._compute_loss`
//! (trl/trainer/kto_trainer.py), `ORPOTrainer.odds_ratio_loss` (trl/experimental/orpo/orpo_trainer.py) and
//! `CPOTrainer.cpo_loss` (trl/experimental/cpo/cpo_trainer.py).

use super::score::Score;
use crate::data::compare::Side;

/// An objective that compares samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preference {
    /// The loss of a pair, or of a rated sample.
    pub loss: PreferenceLoss,
    /// Factor of a difference in log-probability.
    pub beta: f64,
    /// Weight of the mean cross entropy of the chosen answers, which is added.
    pub sft_weight: f64,
}

/// The loss of a pair, or of a rated sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PreferenceLoss {
    /// DPO (Rafailov et al. 2023, arXiv:2305.18290); robust DPO (Chowdhury et al. 2024, arXiv:2403.00409) if a part of the pairs
    /// is assumed to be swapped.
    Sigmoid {
        /// That part, below one half.
        label_smoothing: f64,
    },
    /// IPO (Azar et al. 2023, arXiv:2310.12036), per token as in TRL.
    Ipo,
    /// APO-zero (D'Oosterlinck et al. 2024, arXiv:2408.06266).
    ApoZero,
    /// KTO (Ethayarajh et al. 2024, arXiv:2402.01306).
    Kto {
        /// Weights of desirable and of undesirable answers.
        weights: [f64; 2],
    },
    /// APO-zero for rated answers.
    ApoZeroUnpaired {
        /// Weights of desirable and of undesirable answers.
        weights: [f64; 2],
    },
    /// ORPO (Hong et al. 2024, arXiv:2403.07691). The cross entropy of the chosen sample, prompt and answer, is added.
    Orpo,
    /// SimPO (Meng et al. 2024, arXiv:2405.14734).
    Simpo {
        /// Target margin of the rewards.
        gamma: f64,
    },
}

/// A sample with its scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// The part that it plays.
    pub side: Side,
    /// Log-probabilities under the model.
    pub score: Score,
    /// Log-probability of the answer under the reference.
    pub reference: f64,
}

impl Scored {
    fn log_ratio(&self) -> f64 {
        self.score.logp - self.reference
    }

    fn mean_logp(&self) -> f64 {
        self.score.logp / self.score.tokens as f64
    }
}

/// The loss of a pair or of a rated sample, and its gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Judged {
    /// The loss, without the cross entropy that is added.
    pub loss: f64,
    /// Its derivative with respect to the log-probability of each answer.
    pub slopes: [f64; 2],
    /// Logarithm of the odds ratio, for ORPO.
    pub log_odds: Option<f64>,
}

/// The largest mean log-probability whose odds f64 holds well.
const ALMOST_CERTAIN: f64 = -1e-9;

impl Preference {
    /// Whether the loss compares with the log-probabilities of the reference.
    pub fn needs_reference(&self) -> bool {
        !matches!(self.loss, PreferenceLoss::Orpo | PreferenceLoss::Simpo { .. })
    }

    /// Whether the loss needs answers to other prompts, to estimate how far the model has moved.
    pub fn needs_mismatched(&self) -> bool {
        matches!(self.loss, PreferenceLoss::Kto { .. })
    }

    /// Whether the tokens of the chosen samples' prompts have loss too.
    pub fn trains_prompts(&self) -> bool {
        self.loss == PreferenceLoss::Orpo
    }

    /// Whether samples are rated one by one, not compared in pairs.
    pub fn is_rated(&self) -> bool {
        matches!(self.loss, PreferenceLoss::Kto { .. } | PreferenceLoss::ApoZeroUnpaired { .. })
    }

    /// Weight of the mean cross entropy of the good samples.
    pub fn nll_weight(&self) -> f64 {
        if self.loss == PreferenceLoss::Orpo { 1.0 } else { self.sft_weight }
    }

    /// The reward of an answer, as TRL reports it.
    pub fn reward(&self, sample: &Scored) -> f64 {
        self.beta * if self.needs_reference() { sample.log_ratio() } else { sample.mean_logp() }
    }

    /// The log-probability of an answer, as TRL reports it: the mean per token for objectives without a reference.
    pub fn logp(&self, sample: &Scored) -> f64 {
        if self.needs_reference() { sample.score.logp } else { sample.mean_logp() }
    }

    /// Judges a pair, chosen first, or a rated sample. `kl`: the estimate of how far the model has moved.
    pub fn judge(&self, unit: &[Scored], kl: f64) -> Judged {
        match unit {
            [chosen, rejected] => self.judge_pair(chosen, rejected),
            [rated] => self.judge_rated(rated, kl),
            _ => Judged::default(),
        }
    }

    fn judge_pair(&self, chosen: &Scored, rejected: &Scored) -> Judged {
        let beta = self.beta;
        let counts = [chosen.score.tokens as f64, rejected.score.tokens as f64];
        let (mut log_odds, ratios) = (None, [chosen.log_ratio(), rejected.log_ratio()]);
        let means = [chosen.mean_logp(), rejected.mean_logp()];
        let (loss, slopes) = match self.loss {
            PreferenceLoss::Sigmoid { label_smoothing } => {
                let x = beta * (ratios[0] - ratios[1]);
                let (kept, swapped, rest) =
                    (1.0 - label_smoothing, label_smoothing, 1.0 - 2.0 * label_smoothing);
                let loss = (kept * softplus(-x) - swapped * softplus(x)) / rest;
                let slope = -beta * (kept * sigmoid(-x) + swapped * sigmoid(x)) / rest;
                (loss, [slope, -slope])
            }
            PreferenceLoss::Ipo => {
                let beyond = ratios[0] / counts[0] - ratios[1] / counts[1] - 1.0 / (2.0 * beta);
                (beyond * beyond, [2.0 * beyond / counts[0], -2.0 * beyond / counts[1]])
            }
            PreferenceLoss::ApoZero => {
                let [good, bad] = ratios.map(|ratio| beta * ratio);
                let slope = |x: f64| beta * sigmoid(x) * sigmoid(-x);
                (sigmoid(-good) + sigmoid(bad), [-slope(good), slope(bad)])
            }
            PreferenceLoss::Orpo => {
                let [good, bad] = means.map(|mean| mean.min(ALMOST_CERTAIN));
                let odds = good - bad - (log_1m_exp(good) - log_1m_exp(bad));
                log_odds = Some(odds);
                let slope = |mean: f64| beta * sigmoid(-odds) / -mean.exp_m1();
                (beta * softplus(-odds), [-slope(good) / counts[0], slope(bad) / counts[1]])
            }
            PreferenceLoss::Simpo { gamma } => {
                let x = beta * (means[0] - means[1]) - gamma;
                let slope = beta * sigmoid(-x);
                (softplus(-x), [-slope / counts[0], slope / counts[1]])
            }
            PreferenceLoss::Kto { .. } | PreferenceLoss::ApoZeroUnpaired { .. } => (0.0, [0.0; 2]),
        };
        Judged { loss, slopes, log_odds }
    }

    fn judge_rated(&self, rated: &Scored, kl: f64) -> Judged {
        let (weights, kl) = match self.loss {
            PreferenceLoss::Kto { weights } => (weights, kl),
            PreferenceLoss::ApoZeroUnpaired { weights } => (weights, 0.0),
            _ => return Judged::default(),
        };
        let x = self.beta * (rated.log_ratio() - kl);
        let slope = self.beta * sigmoid(x) * sigmoid(-x);
        let (loss, slope) = match rated.side.is_good() {
            true => (weights[0] * sigmoid(-x), -weights[0] * slope),
            false => (weights[1] * sigmoid(x), weights[1] * slope),
        };
        Judged { loss, slopes: [slope, 0.0], log_odds: None }
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + e^x)`, without overflow.
pub(super) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// `ln(1 − e^x)` for `x` below 0.
fn log_1m_exp(x: f64) -> f64 {
    if x > -std::f64::consts::LN_2 { (-x.exp_m1()).ln() } else { (-x.exp()).ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOSSES: [PreferenceLoss; 8] = [
        PreferenceLoss::Sigmoid { label_smoothing: 0.0 },
        PreferenceLoss::Sigmoid { label_smoothing: 0.2 },
        PreferenceLoss::Ipo,
        PreferenceLoss::ApoZero,
        PreferenceLoss::Kto { weights: [1.5, 0.75] },
        PreferenceLoss::ApoZeroUnpaired { weights: [1.5, 0.75] },
        PreferenceLoss::Orpo,
        PreferenceLoss::Simpo { gamma: 0.5 },
    ];

    fn scored(side: Side, logp: f64, tokens: usize, reference: f64) -> Scored {
        Scored { side, score: Score { logp, tokens, ..Score::default() }, reference }
    }

    #[test]
    fn slopes_are_those_of_finite_differences() {
        for loss in LOSSES {
            let preference = Preference { loss, beta: 0.3, sft_weight: 0.0 };
            let units: &[Vec<Scored>] = match preference.is_rated() {
                true => &[
                    vec![scored(Side::Desirable, -7.0, 5, -8.0)],
                    vec![scored(Side::Undesirable, -3.0, 2, -1.0)],
                ],
                false => &[vec![scored(Side::Chosen, -7.0, 5, -8.0), scored(Side::Rejected, -3.0, 2, -1.0)]],
            };
            for unit in units {
                let found = preference.judge(unit, 0.4).slopes;
                for side in 0..unit.len() {
                    let moved = |by: f64| {
                        let mut unit = unit.clone();
                        unit[side].score.logp += by;
                        preference.judge(&unit, 0.4).loss
                    };
                    let expected = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                    assert!((found[side] - expected).abs() < 1e-9, "{loss:?}: {} {expected}", found[side]);
                }
            }
        }
    }

    #[test]
    fn extreme_scores_have_finite_losses_and_slopes() {
        for loss in LOSSES {
            let preference = Preference { loss, beta: 0.3, sft_weight: 0.0 };
            for logp in [-1e6, -1e-9, 0.0] {
                let unit = [scored(Side::Chosen, logp, 1, -1e6), scored(Side::Rejected, -1e6, 1, logp)];
                let unit = if preference.is_rated() { &unit[..1] } else { &unit[..] };
                let judged = preference.judge(unit, 0.0);
                assert!(judged.loss.is_finite() && judged.slopes.iter().all(|s| s.is_finite()), "{judged:?}");
            }
        }
    }
}
