//! `y = activation(gate) ⊙ up`, for feed-forward blocks, experts and per-layer embeddings.
//!
//! GELU, in its tanh approximation, is from Hendrycks and Gimpel 2016, arXiv:1606.08415:
//! `gelu(x) = x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`. SiLU is from Elfwing, Uchibe and Doya 2017, arXiv:1702.03118:
//! `silu(x) = x·σ(x)`, `σ(x) = 1/(1 + e⁻ˣ)`.

use std::f64::consts::PI;

use crate::base::config::Activation;

/// Coefficient of `x³` in GELU.
const CUBIC: f64 = 0.044715;

/// `gate`, `up` `[N]` -> `[N]`.
pub fn forward(gate: &[f64], up: &[f64], activation: Activation) -> Vec<f64> {
    let mut y = vec![0.0; gate.len()];
    for i in 0..gate.len() {
        y[i] = activate(gate[i], activation) * up[i];
    }
    y
}

/// `dgate = dy ⊙ up ⊙ activation′(gate)`, `dup = dy ⊙ activation(gate)`: all `[N]`; returns `(dgate, dup)`.
pub fn backward(dy: &[f64], gate: &[f64], up: &[f64], activation: Activation) -> (Vec<f64>, Vec<f64>) {
    let mut dgate = vec![0.0; gate.len()];
    let mut dup = vec![0.0; gate.len()];
    for i in 0..gate.len() {
        dgate[i] = dy[i] * up[i] * derivative(gate[i], activation);
        dup[i] = dy[i] * activate(gate[i], activation);
    }
    (dgate, dup)
}

fn activate(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Gelu => 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + CUBIC * x * x * x)).tanh()),
        Activation::Silu => x * sigmoid(x),
    }
}

fn derivative(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Gelu => {
            let tanh = ((2.0 / PI).sqrt() * (x + CUBIC * x * x * x)).tanh();
            let inner_derivative = (2.0 / PI).sqrt() * (1.0 + 3.0 * CUBIC * x * x);
            0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner_derivative
        }
        Activation::Silu => sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x))),
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(activation: Activation, values: [(f64, f64); 4]) {
        for (x, expected) in values {
            let found = forward(&[x], &[2.0], activation)[0];
            assert!(
                (found - 2.0 * expected).abs() < 1e-9,
                "{activation:?} of {x}: expected {expected}, found {}",
                found / 2.0
            );
        }
    }

    #[test]
    fn gelu_is_the_tanh_form() {
        // torch.nn.functional.gelu(x, approximate="tanh"); the erf form is 0.8413447 at 1 and -0.1586553 at -1.
        let values = [(0.0, 0.0), (1.0, 0.841_191_990_6), (-1.0, -0.158_808_009_4), (3.0, 2.996_362_607_9)];
        check(Activation::Gelu, values);
    }

    #[test]
    fn silu_is_x_times_the_sigmoid() {
        // torch.nn.functional.silu(x)
        let values = [(0.0, 0.0), (1.0, 0.731_058_578_6), (-1.0, -0.268_941_421_4), (3.0, 2.857_722_380_5)];
        check(Activation::Silu, values);
    }
}
