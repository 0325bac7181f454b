//! Kullback-Leibler divergence and agreement of two models' logits, and what an adapter does to its base.

use std::fmt;

use super::Logits;
use super::logits::log_sum_exp;
use crate::talk::sampling::likeliest;

/// Differences between the next-token distributions of two models, over some tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Divergence {
    /// Mean of KL(reference ‖ other), in nats.
    pub kl: f64,
    /// Largest KL(reference ‖ other) of a token, in nats.
    pub worst_kl: f64,
    /// Fraction of the tokens for which both models find the same next token the likeliest.
    pub top1: f64,
    /// Number of tokens compared.
    pub tokens: usize,
}

impl Divergence {
    /// The divergence of `other` from `reference`. Both are logits for the same tokens.
    pub fn between(reference: &Logits, other: &Logits) -> Divergence {
        let shape = |logits: &Logits| (logits.tokens(), logits.vocab());
        assert_eq!(shape(reference), shape(other), "logits of the same tokens");
        let mut kl_sum = 0.0;
        let mut worst_kl = 0.0;
        let mut agreeing = 0.0;
        for (p, q) in reference.rows().zip(other.rows()) {
            let kl = kl_divergence(p, q);
            kl_sum += kl;
            // A NaN replaces any number, and nothing replaces a NaN.
            if kl > worst_kl || kl.is_nan() {
                worst_kl = kl;
            }
            agreeing += f64::from(u8::from(likeliest(p) == likeliest(q)));
        }
        let tokens = reference.tokens().max(1) as f64;
        Divergence { kl: kl_sum / tokens, worst_kl, top1: agreeing / tokens, tokens: reference.tokens() }
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let top1 = 100.0 * self.top1;
        write!(f, "KL divergence {:.3e} (at most {:.3e}), same top token {top1:.2} %", self.kl, self.worst_kl)
    }
}

/// KL(p ‖ q) of the softmax of two rows of logits, in nats.
fn kl_divergence(p: &[f32], q: &[f32]) -> f64 {
    let p_norm = log_sum_exp(p);
    let q_norm = log_sum_exp(q);
    let log = |x: f32, norm: f64| f64::from(x) - norm;
    p.iter().zip(q).map(|(&p, &q)| log(p, p_norm).exp() * (log(p, p_norm) - log(q, q_norm))).sum()
}

/// The effect of an adapter on its base, measured on some text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// Divergence of the base alone from the base with the adapter.
    pub divergence: Divergence,
    /// Loss of the base alone minus loss with the adapter, in nats.
    pub improvement: f64,
    /// Loss of a uniform guess over the vocabulary: `ln V`.
    pub uniform_loss: f64,
}

impl Effect {
    /// Compares the logits of the base `alone` with those of the `adapted` base.
    pub fn between(alone: &Logits, adapted: &Logits) -> Effect {
        Effect {
            divergence: Divergence::between(adapted, alone),
            improvement: alone.loss() - adapted.loss(),
            uniform_loss: (alone.vocab() as f64).ln(),
        }
    }

    /// The largest divergence that is accepted: `ln V` plus the loss that the adapter saves.
    ///
    /// Above `ln V`, the base finds the adapted model's choices less likely than random tokens. An adapter that is right about
    /// the text diverges, on average, by as much as it lowers the loss.
    pub fn bound(&self) -> f64 {
        self.uniform_loss + self.improvement.max(0.0)
    }

    /// Rejects an adapter that changes no logit, gives values that are not finite, or breaks its base. The error says which.
    pub fn check(&self) -> Result<(), String> {
        let Divergence { kl, tokens, .. } = self.divergence;
        if !(kl.is_finite() && self.improvement.is_finite()) {
            return Err(format!(
                "its KL divergence from the base is {kl}, expected a finite number; lower the learning rate or the alpha"
            ));
        }
        if kl == 0.0 {
            return Err(format!(
                "it changes no logit of {tokens} tokens; compare on text like its training data, or train it first"
            ));
        }
        if kl > self.bound() {
            return Err(format!(
                "its KL divergence from the base is {kl:.2} nats over {tokens} tokens, expected at most {:.2}: {:.2} for a random \
                 guess plus {:.2} for the lower loss; lower the learning rate or the alpha",
                self.bound(),
                self.uniform_loss,
                self.improvement.max(0.0)
            ));
        }
        Ok(())
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let verb = if self.improvement < 0.0 { "raises" } else { "lowers" };
        write!(f, "{}, {verb} the loss by {:.4}", self.divergence, self.improvement.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(rows: &[[f32; 2]]) -> Logits {
        Logits::for_test(rows)
    }

    #[test]
    fn the_divergence_matches_hand_computed_values() {
        // Halves against 3/4 and 1/4: ½·ln(½ / ¾) + ½·ln(½ / ¼) = ½·ln(4/3) on the first token; nothing on the second,
        // whose logits are shifted by a constant.
        let even = logits(&[[0.0, 0.0], [5.0, 1.0]]);
        let skewed = logits(&[[3.0f32.ln(), 0.0], [1004.0, 1000.0]]);
        let found = Divergence::between(&even, &skewed);
        let expected = 0.5 * (4.0f64 / 3.0).ln();
        assert!((found.worst_kl - expected).abs() < 1e-7, "{found:?}, expected {expected}");
        assert!((found.kl - expected / 2.0).abs() < 1e-7, "{found:?}");
        assert_eq!((found.top1, found.tokens), (1.0, 2));
        // The other direction: ¾·ln(¾ / ½) + ¼·ln(¼ / ½).
        let found = Divergence::between(&logits(&[[3.0f32.ln(), 0.0]]), &logits(&[[0.0, 1e-3]]));
        let expected = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        assert!((found.kl - expected).abs() < 1e-3, "{found:?}, expected {expected}");
        assert_eq!(found.top1, 0.0);
        let with_nan = Divergence::between(&logits(&[[f32::NAN, 0.0], [0.0, 0.0]]), &logits(&[[0.0; 2]; 2]));
        assert!(with_nan.worst_kl.is_nan());
    }

    #[test]
    fn an_adapter_may_diverge_by_its_gain_plus_a_random_guess() {
        // The base gives the first token 1/4, the adapted model 3/4: ln 4 and ln(4/3) of loss.
        let [alone, adapted] = [[0.0, 3.0f32.ln()], [3.0f32.ln(), 0.0]].map(|row| logits(&[row]));
        let effect = Effect::between(&alone, &adapted);
        assert!((alone.loss() - 4.0f64.ln()).abs() < 1e-7, "{}", alone.loss());
        assert!((effect.improvement - 3.0f64.ln()).abs() < 1e-7, "{effect}");
        assert!(
            (effect.divergence.kl - 0.5 * 3.0f64.ln()).abs() < 1e-7,
            "{effect}: the reference is the adapted model"
        );
        assert!((effect.bound() - 6.0f64.ln()).abs() < 1e-7, "ln 2 and ln 3: {}", effect.bound());
        assert_eq!(effect.check(), Ok(()));
        // In the other direction nothing is gained.
        assert_eq!(Effect::between(&adapted, &alone).bound(), 2.0f64.ln());
        let broken = Effect::between(&logits(&[[0.0, 9.0]]), &logits(&[[9.0, 0.0]]));
        let error = Effect { improvement: -1.0, ..broken }.check().expect_err("broken");
        assert!(
            error.contains(
                "from the base is 9.00 nats over 1 tokens, expected at most 0.69: 0.69 for a random guess"
            ),
            "{error}"
        );
        assert_eq!(Effect { improvement: 9.0, ..broken }.check(), Ok(()), "a gain explains it");
        let nan = Effect::between(&alone, &logits(&[[f32::NAN, 0.0]]));
        assert!(nan.check().expect_err("NaN").contains("from the base is NaN, expected a finite number"));
        let same = Effect::between(&alone, &alone);
        assert!(same.check().expect_err("no effect").contains("it changes no logit of 1 tokens"));
        assert!((alone.distance(&adapted) - 3.0f64.ln() * 2.0f64.sqrt()).abs() < 1e-7);
    }
}
