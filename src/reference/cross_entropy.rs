//! Softcap and cross entropy: `c = cap·tanh(z/cap)` (or `c = z`), `t = c/temperature`, `loss = ln Σ_j exp(t_j) − t_target`.

use super::{row, row_mut};

/// Changes of the logits before the softmax.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adjusted {
    /// The softcap.
    pub softcap: Option<f64>,
    /// Divides the logits behind the softcap.
    pub temperature: f64,
}

impl From<Option<f64>> for Adjusted {
    fn from(softcap: Option<f64>) -> Adjusted {
        Adjusted { softcap, temperature: 1.0 }
    }
}

impl Adjusted {
    fn of(self, logits: &[f64]) -> Vec<f64> {
        softcap(logits, self.softcap).iter().map(|c| c / self.temperature).collect()
    }
}

/// `logits` before the softcap `[N, V]`, `targets` `[N]` -> one loss per row, `[N]`.
pub fn forward(logits: &[f64], targets: &[u32], adjusted: impl Into<Adjusted>, vocab: usize) -> Vec<f64> {
    let adjusted = adjusted.into();
    let mut losses = vec![0.0; targets.len()];
    for n in 0..targets.len() {
        let capped = adjusted.of(row(logits, n, vocab));
        losses[n] = log_sum_exp(&capped) - capped[targets[n] as usize];
    }
    losses
}

/// Gradient of `Σ_n coefficients_n·loss_n` with respect to the logits before the softcap, `[N, V]`.
///
/// `dz_j = coefficient/temperature·(softmax(t)_j − [j = target])·(1 − (c_j/cap)²)`.
pub fn backward(
    coefficients: &[f64],
    logits: &[f64],
    targets: &[u32],
    adjusted: impl Into<Adjusted>,
    vocab: usize,
) -> Vec<f64> {
    let Adjusted { softcap, temperature } = adjusted.into();
    let mut dlogits = vec![0.0; logits.len()];
    for n in 0..targets.len() {
        let capped = self::softcap(row(logits, n, vocab), softcap);
        let tempered: Vec<f64> = capped.iter().map(|c| c / temperature).collect();
        let lse = log_sum_exp(&tempered);
        let dlogits = row_mut(&mut dlogits, n, vocab);
        for j in 0..vocab {
            let one_hot = if j == targets[n] as usize { 1.0 } else { 0.0 };
            let dcapped = coefficients[n] / temperature * ((tempered[j] - lse).exp() - one_hot);
            let slope = softcap.map_or(1.0, |cap| 1.0 - (capped[j] / cap) * (capped[j] / cap));
            dlogits[j] = dcapped * slope;
        }
    }
    dlogits
}

/// `cap·tanh(z/cap)` of every logit; without a cap, the logits unchanged.
pub fn softcap(logits: &[f64], softcap: Option<f64>) -> Vec<f64> {
    let mut capped = logits.to_vec();
    if let Some(cap) = softcap {
        for j in 0..capped.len() {
            capped[j] = cap * (capped[j] / cap).tanh();
        }
    }
    capped
}

pub(super) fn log_sum_exp(logits: &[f64]) -> f64 {
    let mut max = f64::NEG_INFINITY;
    for &logit in logits {
        max = max.max(logit);
    }
    let mut sum = 0.0;
    for &logit in logits {
        sum += (logit - max).exp();
    }
    max + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_cost_ln_of_the_vocabulary() {
        let losses = forward(&[7.0; 10], &[0, 4], Some(30.0), 5);
        for loss in losses {
            assert!((loss - 5f64.ln()).abs() < 1e-14, "expected ln 5, found {loss}");
        }
    }

    #[test]
    fn the_softcap_comes_first() {
        // Logits (+inf-like, -inf-like) become (2, -2) under a cap of 2: loss of the second is ln(1 + e⁴).
        let loss = forward(&[1e9, -1e9], &[1], Some(2.0), 2)[0];
        assert!((loss - (1.0 + 4f64.exp()).ln()).abs() < 1e-14, "found {loss}");
    }
}
