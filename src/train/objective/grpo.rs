//! The loss of completions that were sampled and rewarded, and its gradient with respect to the log-probability of every token.
//!
//! Must match TRL 1.16: `GRPOTrainer._compute_loss` (trl/trainer/grpo_trainer.py).

/// An objective that learns from rewards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grpo {
    /// The loss of a token, and the divisor of their sum.
    pub loss: GrpoLoss,
    /// The unit that has one probability ratio.
    pub level: Level,
    /// Ratios count down to 1 − this.
    pub epsilon: f64,
    /// Ratios count up to 1 + this; for [`GrpoLoss::Cispo`] up to this.
    pub epsilon_high: f64,
    /// Bound on ratios where the advantage is negative; TRL's two-sided clipping.
    pub delta: Option<f64>,
    /// Weight of the divergence from the reference; 0: there is no reference.
    pub beta: f64,
    /// The logits are divided by it, as those that the completions were drawn from.
    pub temperature: f64,
    /// Most tokens of a completion, the divisor of [`GrpoLoss::DrGrpo`].
    pub max_completion_length: usize,
}

/// The loss of a token, and the divisor of their sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpoLoss {
    /// Clipped ratios, divided by the tokens of the step (Yu et al. 2025, arXiv:2503.14476).
    Dapo,
    /// Clipped ratios, the mean over completions of their means over tokens (Shao et al. 2024, arXiv:2402.03300).
    Grpo,
    /// Clipped ratios, the mean over micro-batches of their means over tokens.
    Bnpo,
    /// Clipped ratios, divided by the tokens that the completions could have (Liu et al. 2025, arXiv:2503.20783).
    DrGrpo,
    /// Log-probabilities with bounded ratios as weights, divided by the tokens of the step (arXiv:2506.13585).
    Cispo,
}

/// The unit that has one probability ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A token.
    Token,
    /// A completion: the geometric mean of its tokens' ratios (GSPO; Zheng et al. 2025, arXiv:2507.18071).
    Sequence,
}

/// A completion with the log-probabilities of its tokens.
#[derive(Clone, Copy, Debug)]
pub struct Judgeable<'a> {
    /// The advantage.
    pub advantage: f64,
    /// Whether its tokens have loss.
    pub counts: bool,
    /// Log-probabilities under the model.
    pub logps: &'a [f64],
    /// Those when the completion was drawn; `None`: the model has not changed since.
    pub old: Option<&'a [f64]>,
    /// Those under the reference, if there is one.
    pub reference: Option<&'a [f64]>,
}

/// The losses of a completion's tokens before the divisor, with what they follow from.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLosses {
    /// The loss of each token.
    pub losses: Vec<f64>,
    /// The derivative of their sum with respect to each log-probability.
    pub slopes: Vec<f64>,
    /// The ratio of each token, or of all; bounded by [`Grpo::delta`], as TRL measures it.
    pub ratios: Vec<f64>,
    /// The divergence of each token from the reference; empty without one.
    pub divergences: Vec<f64>,
}

/// Counts that divide a step's sums, of completions and tokens that have loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Completions of the step, those without loss included.
    pub completions: usize,
    /// Tokens of the step.
    pub tokens: usize,
    /// Micro-batches of the step.
    pub micro_batches: usize,
    /// Tokens of the micro-batch.
    pub of_batch: usize,
    /// Tokens of the completion.
    pub own: usize,
}

impl Grpo {
    /// Whether the loss compares with the log-probabilities of the reference.
    pub fn needs_reference(&self) -> bool {
        self.beta != 0.0
    }

    /// Whether the clipped ratio is part of the loss.
    pub fn clips(&self) -> bool {
        self.loss != GrpoLoss::Cispo
    }

    /// The losses of a completion's tokens.
    pub fn judge(&self, completion: &Judgeable) -> TokenLosses {
        let &Judgeable { advantage, logps, old, reference, .. } = completion;
        let differences: Vec<f64> = match old {
            Some(old) => logps.iter().zip(old).map(|(logp, old)| logp - old).collect(),
            None => vec![0.0; logps.len()],
        };
        let logs = match self.level {
            Level::Token => differences,
            // The mean over the tokens that have loss; without any, TRL's is 0.
            Level::Sequence if completion.counts => {
                vec![differences.iter().sum::<f64>() / differences.len().max(1) as f64]
            }
            Level::Sequence => vec![0.0],
        };
        let mut found = TokenLosses {
            losses: Vec::with_capacity(logps.len()),
            slopes: Vec::with_capacity(logps.len()),
            ratios: logs.iter().map(|log| self.bounded(log.exp())).collect(),
            divergences: Vec::new(),
        };
        for (t, &logp) in logps.iter().enumerate() {
            let ratio = logs[if logs.len() == 1 { 0 } else { t }].exp();
            let (mut loss, mut slope) = self.token(ratio, advantage, logp);
            if let Some(reference) = reference.filter(|_| self.needs_reference()) {
                let beyond = reference[t] - logp;
                // k3 of http://joschu.net/blog/kl-approx.html.
                let divergence = beyond.exp() - beyond - 1.0;
                loss += self.beta * divergence;
                slope += self.beta * (1.0 - beyond.exp());
                found.divergences.push(divergence);
            }
            found.losses.push(loss);
            found.slopes.push(slope);
        }
        found
    }

    /// The loss of a token, and its derivative with respect to the log-probability.
    fn token(&self, ratio: f64, advantage: f64, logp: f64) -> (f64, f64) {
        if self.loss == GrpoLoss::Cispo {
            // The ratio is a constant weight.
            let weight = -ratio.min(self.epsilon_high) * advantage;
            return (weight * logp, weight);
        }
        let (low, high) = (1.0 - self.epsilon, 1.0 + self.epsilon_high);
        let free = self.bounded(ratio) * advantage;
        let clipped = ratio.clamp(low, high) * advantage;
        let of_free = if self.delta.is_none_or(|delta| ratio <= delta) { ratio * advantage } else { 0.0 };
        let of_clipped = if (low..=high).contains(&ratio) { ratio * advantage } else { 0.0 };
        let slope = match free.total_cmp(&clipped) {
            std::cmp::Ordering::Less => of_free,
            std::cmp::Ordering::Greater => of_clipped,
            // As PyTorch's min of equal numbers.
            std::cmp::Ordering::Equal => 0.5 * (of_free + of_clipped),
        };
        (-free.min(clipped), -slope)
    }

    fn bounded(&self, ratio: f64) -> f64 {
        self.delta.filter(|_| self.clips()).map_or(ratio, |delta| ratio.min(delta))
    }

    /// The factor of each token's loss in the objective of the step.
    pub fn weight(&self, counts: Counts) -> f64 {
        let Counts { completions, tokens, micro_batches, of_batch, own } = counts;
        let divisor = match self.loss {
            GrpoLoss::Dapo | GrpoLoss::Cispo => tokens.max(1) as f64,
            GrpoLoss::Grpo => own.max(1) as f64 * completions as f64,
            GrpoLoss::Bnpo => of_batch.max(1) as f64 * micro_batches as f64,
            GrpoLoss::DrGrpo => completions as f64 * self.max_completion_length as f64,
        };
        1.0 / divisor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOSSES: [GrpoLoss; 5] =
        [GrpoLoss::Dapo, GrpoLoss::Grpo, GrpoLoss::Bnpo, GrpoLoss::DrGrpo, GrpoLoss::Cispo];

    fn grpo(loss: GrpoLoss, level: Level) -> Grpo {
        Grpo {
            loss,
            level,
            epsilon: 0.2,
            epsilon_high: 0.28,
            delta: Some(1.6),
            beta: 0.04,
            temperature: 1.0,
            max_completion_length: 16,
        }
    }

    /// The loss as autograd sees it: CISPO's weights are constants, taken at `at`.
    fn value(grpo: &Grpo, completion: &Judgeable, at: &[f64]) -> f64 {
        let fixed = grpo.judge(&Judgeable { logps: at, ..*completion });
        let moved = grpo.judge(completion);
        match grpo.loss {
            GrpoLoss::Cispo => {
                let weights =
                    fixed.ratios.iter().map(|ratio| -ratio.min(grpo.epsilon_high) * completion.advantage);
                let weights: Vec<f64> = weights.cycle().take(at.len()).collect();
                let policy: f64 =
                    weights.iter().zip(completion.logps).map(|(weight, logp)| weight * logp).sum();
                policy + grpo.beta * moved.divergences.iter().sum::<f64>()
            }
            _ => moved.losses.iter().sum(),
        }
    }

    #[test]
    fn slopes_are_those_of_finite_differences() {
        let logps = [-0.4, -2.0, -1.1, -0.2, -3.0];
        let old = [-0.5, -2.6, -0.6, -0.25, -1.5];
        let reference = [-0.3, -1.7, -1.4, -0.4, -2.0];
        for (loss, level) in LOSSES.into_iter().flat_map(|l| [(l, Level::Token), (l, Level::Sequence)]) {
            for advantage in [1.3, -0.7, 0.0] {
                let grpo = grpo(loss, level);
                let of = Judgeable {
                    advantage,
                    counts: true,
                    logps: &logps,
                    old: Some(&old),
                    reference: Some(&reference),
                };
                let found = grpo.judge(&of).slopes;
                for t in 0..logps.len() {
                    let moved = |by: f64| {
                        let mut moved = logps;
                        moved[t] += by;
                        value(&grpo, &Judgeable { logps: &moved, ..of }, &logps)
                    };
                    let expected = (moved(1e-6) - moved(-1e-6)) / 2e-6;
                    let error = (found[t] - expected).abs();
                    assert!(error < 1e-8, "{loss:?} {level:?} {advantage} {t}: {} {expected}", found[t]);
                }
            }
        }
    }

    #[test]
    fn an_unchanged_model_has_the_gradient_of_the_policy() {
        let logps = [-0.4, -2.0];
        for (loss, level) in LOSSES.into_iter().flat_map(|l| [(l, Level::Token), (l, Level::Sequence)]) {
            let grpo = Grpo { beta: 0.0, epsilon_high: 5.0, ..grpo(loss, level) };
            let of = Judgeable { advantage: 0.5, counts: true, logps: &logps, old: None, reference: None };
            assert_eq!(grpo.judge(&of).slopes, [-0.5, -0.5], "{loss:?} {level:?}");
        }
    }
}
