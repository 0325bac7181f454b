//! The router of a mixture of experts: softmax over all scores, or their sigmoids; the `used` largest are normalized to a sum of 1, or left
//! as they are.
//!
//! Among equal scores the lower expert comes first, both here and on the device.

use super::row;
use crate::base::config::{Experts, Gating};

/// The active experts of each token, and their weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routing {
    /// Indices of the active experts, `[N, used]`, the largest score first.
    pub experts: Vec<usize>,
    /// Weights of the active experts, `[N, used]`.
    pub weights: Vec<f64>,
    /// Softmax over all experts, or sigmoids, `[N, E]`.
    pub probabilities: Vec<f64>,
    /// The values of which the largest decide, `[N, E]`: scores, or sigmoids with biases.
    pub preferences: Vec<f64>,
    /// The way to the weights.
    pub gating: Gating,
}

/// Added to the sum of sigmoids, as transformers adds it.
const LEAST: f64 = 1e-6;

/// `scores` `[N, E]` -> the routing. `selection` `[E]` are the biases of [`Gating::Sigmoid`]. If `chosen` `[N, used]` is given, it
/// determines the experts.
pub fn forward(scores: &[f64], shape: &Experts, selection: &[f64], chosen: Option<&[usize]>) -> Routing {
    let (experts, used) = (shape.count, shape.used);
    let mut routing = Routing { gating: shape.gating, ..Routing::default() };
    for n in 0..scores.len() / experts {
        let scores = row(scores, n, experts);
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
        let sigmoid = shape.gating == Gating::Sigmoid;
        let of = |s: &f64| if sigmoid { 1.0 / (1.0 + (-s).exp()) } else { (s - largest).exp() / sum };
        let probabilities: Vec<f64> = scores.iter().map(of).collect();
        let preferences: Vec<f64> = match sigmoid {
            true => probabilities.iter().zip(selection).map(|(p, bias)| p + bias).collect(),
            false => scores.to_vec(),
        };
        let mut order: Vec<usize> = (0..experts).collect();
        order.sort_by(|a, b| (preferences[*b] + 0.0).total_cmp(&(preferences[*a] + 0.0))); // stable; -0 equals 0
        let order = chosen.map_or(&order[..used], |chosen| &chosen[n * used..(n + 1) * used]);
        let divisor = match shape.gating {
            Gating::Chosen => order.iter().map(|e| probabilities[*e]).sum(),
            Gating::Sigmoid => order.iter().map(|e| probabilities[*e]).sum::<f64>() + LEAST,
            Gating::All => 1.0,
        };
        routing.weights.extend(order.iter().map(|e| probabilities[*e] / divisor));
        routing.experts.extend(order);
        routing.probabilities.extend(probabilities);
        routing.preferences.extend(preferences);
    }
    routing
}

/// `dscores` `[N, E]` from `dweights` `[N, used]`, through the normalization and the softmax. The choice of experts is a
/// constant.
pub fn backward(dweights: &[f64], routing: &Routing, experts: usize) -> Vec<f64> {
    let rows = routing.probabilities.len() / experts;
    let used = routing.experts.len() / rows.max(1);
    let mut dscores = vec![0.0; rows * experts];
    for n in 0..rows {
        let (dweights, weights) = (row(dweights, n, used), row(&routing.weights, n, used));
        let probabilities = row(&routing.probabilities, n, experts);
        let chosen = &routing.experts[n * used..(n + 1) * used];
        let (mean, divisor) = match routing.gating {
            Gating::Chosen | Gating::Sigmoid => {
                let mean: f64 = (0..used).map(|k| weights[k] * dweights[k]).sum();
                let least = if routing.gating == Gating::Sigmoid { LEAST } else { 0.0 };
                (mean, chosen.iter().map(|e| probabilities[*e]).sum::<f64>() + least)
            }
            Gating::All => (0.0, 1.0),
        };
        let mut dprobabilities = vec![0.0; experts];
        for k in 0..used {
            dprobabilities[chosen[k]] = (dweights[k] - mean) / divisor;
        }
        let inner: f64 = (0..experts).map(|e| probabilities[e] * dprobabilities[e]).sum();
        for e in 0..experts {
            let slope = match routing.gating {
                Gating::Sigmoid => (1.0 - probabilities[e]) * dprobabilities[e],
                Gating::Chosen | Gating::All => dprobabilities[e] - inner,
            };
            dscores[n * experts + e] = probabilities[e] * slope;
        }
    }
    dscores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_chosen_and_equals_by_their_number() {
        // exp: 1, 3, 1, 3 of 8: experts 1 and 3 with ½ each. Among three equal scores, the first two are taken.
        let three = 3f64.ln();
        for (gating, expected) in [(Gating::Chosen, 0.5), (Gating::All, 0.375)] {
            let shape = Experts { count: 4, used: 2, gating, ..Experts::default() };
            let routing = forward(&[0.0, three, 0.0, three, 1.0, 1.0, 0.0, 1.0], &shape, &[], None);
            assert_eq!(routing.experts, [1, 3, 0, 1]);
            assert!((routing.weights[0] - expected).abs() < 1e-15);
            assert!((routing.weights[1] - expected).abs() < 1e-15);
        }
        let shape = Experts { count: 4, used: 2, ..Experts::default() };
        let routing = forward(&[0.0, three, 0.0, three], &shape, &[], None);
        assert!((routing.probabilities[1] - 0.375).abs() < 1e-15);
    }

    #[test]
    fn biases_choose_and_weigh_nothing() {
        // Sigmoids: ½, ¾, ½, ¾. The bias brings the last before the second.
        let three = 3f64.ln();
        let shape = Experts { count: 4, used: 2, gating: Gating::Sigmoid, ..Experts::default() };
        let routing = forward(&[0.0, three, 0.0, three], &shape, &[0.5, 0.0, 0.1, 0.1], None);
        assert_eq!(routing.experts, [0, 3]);
        assert!((routing.weights[0] - 0.5 / (1.25 + LEAST)).abs() < 1e-15);
        assert!((routing.weights[1] - 0.75 / (1.25 + LEAST)).abs() < 1e-15);
    }
}
