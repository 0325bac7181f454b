//! `y = gelu(gate) ⊙ up` with the tanh approximation of GELU, for feed-forward blocks and per-layer embeddings.
//!
//! Hendrycks and Gimpel 2016, arXiv:1606.08415: `gelu(x) = x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`.

use std::f64::consts::PI;

/// Coefficient of `x³`.
const CUBIC: f64 = 0.044715;

/// `gate`, `up` `[N]` -> `[N]`.
pub fn forward(gate: &[f64], up: &[f64]) -> Vec<f64> {
    let mut y = vec![0.0; gate.len()];
    for i in 0..gate.len() {
        y[i] = gelu(gate[i]) * up[i];
    }
    y
}

/// `dgate = dy ⊙ up ⊙ gelu′(gate)`, `dup = dy ⊙ gelu(gate)`: all `[N]`; returns `(dgate, dup)`.
pub fn backward(dy: &[f64], gate: &[f64], up: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let mut dgate = vec![0.0; gate.len()];
    let mut dup = vec![0.0; gate.len()];
    for i in 0..gate.len() {
        dgate[i] = dy[i] * up[i] * gelu_derivative(gate[i]);
        dup[i] = dy[i] * gelu(gate[i]);
    }
    (dgate, dup)
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + CUBIC * x * x * x)).tanh())
}

fn gelu_derivative(x: f64) -> f64 {
    let tanh = ((2.0 / PI).sqrt() * (x + CUBIC * x * x * x)).tanh();
    let inner_derivative = (2.0 / PI).sqrt() * (1.0 + 3.0 * CUBIC * x * x);
    0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner_derivative
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_tanh_form() {
        // torch.nn.functional.gelu(x, approximate="tanh"); the erf form is 0.8413447 at 1 and -0.1586553 at -1.
        for (x, expected) in
            [(0.0, 0.0), (1.0, 0.841_191_990_6), (-1.0, -0.158_808_009_4), (3.0, 2.996_362_607_9)]
        {
            let found = forward(&[x], &[2.0])[0];
            assert!(
                (found - 2.0 * expected).abs() < 1e-9,
                "gelu({x}): expected {expected}, found {}",
                found / 2.0
            );
        }
    }
}
