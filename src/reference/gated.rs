//! `y = activation(gate) ⊙ value(up)`, for feed-forward blocks, experts and per-layer embeddings.
//!
//! GELU, in its tanh approximation, is from Hendrycks and Gimpel 2016, arXiv:1606.08415:
//! `gelu(x) = x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`. SiLU is from Elfwing, Uchibe and Doya 2017, arXiv:1702.03118:
//! `silu(x) = x·σ(x)`, `σ(x) = 1/(1 + e⁻ˣ)`. Both leave up as it is, `value(u) = u`.
//!
//! SwiGLU of gpt-oss, from transformers' `GptOssExperts`: `activation(g) = ḡ·σ(1.702·ḡ)` with `ḡ = min(g, 7)`, and
//! `value(u) = clamp(u, −7, 7) + 1`.

use std::f64::consts::PI;

use crate::base::config::Activation;

/// Coefficient of `x³` in GELU.
const CUBIC: f64 = 0.044715;

/// Largest gate, and largest size of up, of [`Activation::SwigluOai`].
const LIMIT: f64 = 7.0;
/// Factor in the sigmoid of [`Activation::SwigluOai`].
const ALPHA: f64 = 1.702;

/// `gate`, `up` `[N]` -> `[N]`.
pub fn forward(gate: &[f64], up: &[f64], activation: Activation) -> Vec<f64> {
    let mut y = vec![0.0; gate.len()];
    for i in 0..gate.len() {
        y[i] = activate(gate[i], activation) * value(up[i], activation);
    }
    y
}

/// `dgate = dy ⊙ value(up) ⊙ activation′(gate)`, `dup = dy ⊙ activation(gate) ⊙ value′(up)`: all `[N]`; returns `(dgate, dup)`.
pub fn backward(dy: &[f64], gate: &[f64], up: &[f64], activation: Activation) -> (Vec<f64>, Vec<f64>) {
    let mut dgate = vec![0.0; gate.len()];
    let mut dup = vec![0.0; gate.len()];
    for i in 0..gate.len() {
        dgate[i] = dy[i] * value(up[i], activation) * derivative(gate[i], activation);
        dup[i] = dy[i] * activate(gate[i], activation) * value_derivative(up[i], activation);
    }
    (dgate, dup)
}

/// `y = x·σ(gate)`, the gate on attention's output: all `[N]`.
pub fn sigmoid_forward(x: &[f64], gate: &[f64]) -> Vec<f64> {
    x.iter().zip(gate).map(|(x, gate)| x * sigmoid(*gate)).collect()
}

/// `dx = dy·σ(gate)`, `dgate = dy·x·σ(gate)·(1 − σ(gate))`: all `[N]`; returns `(dx, dgate)`.
pub fn sigmoid_backward(dy: &[f64], x: &[f64], gate: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let slope = |i: usize| dy[i] * x[i] * sigmoid(gate[i]) * sigmoid(-gate[i]);
    (sigmoid_forward(dy, gate), (0..dy.len()).map(slope).collect())
}

/// `y = x·σ(score)`, the gate on the rows of a shared expert: `x` `[T, D]`, `scores` `[T]` -> `[T, D]`.
pub fn rows_forward(x: &[f64], scores: &[f64]) -> Vec<f64> {
    sigmoid_forward(x, &of_rows(scores, x.len()))
}

/// `dx = dy·σ(score)` `[T, D]`, and `dscore` `[T]`, the sum of what [`sigmoid_backward`] gives over each row.
pub fn rows_backward(dy: &[f64], x: &[f64], scores: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let (dx, dgate) = sigmoid_backward(dy, x, &of_rows(scores, x.len()));
    (dx, dgate.chunks_exact(x.len() / scores.len()).map(|row| row.iter().sum()).collect())
}

/// Every score as often as a row of `len` values in all has values.
fn of_rows(scores: &[f64], len: usize) -> Vec<f64> {
    scores.iter().flat_map(|score| std::iter::repeat_n(*score, len / scores.len())).collect()
}

fn activate(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Gelu => 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + CUBIC * x * x * x)).tanh()),
        Activation::Silu => x * sigmoid(x),
        Activation::SwigluOai => x.min(LIMIT) * sigmoid(ALPHA * x.min(LIMIT)),
    }
}

fn value(up: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Gelu | Activation::Silu => up,
        Activation::SwigluOai => up.clamp(-LIMIT, LIMIT) + 1.0,
    }
}

fn value_derivative(up: f64, activation: Activation) -> f64 {
    if activation == Activation::SwigluOai && up.abs() > LIMIT { 0.0 } else { 1.0 }
}

fn derivative(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Gelu => {
            let tanh = ((2.0 / PI).sqrt() * (x + CUBIC * x * x * x)).tanh();
            let inner_derivative = (2.0 / PI).sqrt() * (1.0 + 3.0 * CUBIC * x * x);
            0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner_derivative
        }
        Activation::Silu => sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x))),
        Activation::SwigluOai if x > LIMIT => 0.0,
        Activation::SwigluOai => {
            let s = sigmoid(ALPHA * x);
            s * (1.0 + ALPHA * x * (1.0 - s))
        }
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

    #[test]
    fn swiglu_of_gpt_oss_is_clamped() {
        // transformers' `GptOssExperts._apply_gate`: (gate, up, result).
        for (gate, up, expected) in
            [(1.0, 0.5, 1.268_693_6), (9.0, 9.0, 55.999_625), (-9.0, -9.0, 1.201_906_8e-5), (2.0, -1.0, 0.0)]
        {
            let found = forward(&[gate], &[up], Activation::SwigluOai)[0];
            let difference = (found - expected).abs();
            assert!(
                difference < 1e-6 * expected.abs().max(1e-3),
                "{gate} {up}: expected {expected}, found {found}"
            );
        }
    }
}
