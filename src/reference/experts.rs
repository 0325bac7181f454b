//! A mixture of experts after its router: `y[n] = Σ_k weight[n, k]·scale[e]·Down_e·geglu(GateUp_e·x[n])`, `e` the `k`-th expert of `n`.
//!
//! Source: transformers `Gemma4TextExperts`; a gate's rows stand before those of its up. Expert by expert and token by token.

use super::{Routing, add_scaled, dot, geglu, linear, row, row_mut};

/// The matrices of all experts of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Experts<'a> {
    /// `[E, 2·F, D]`.
    pub gate_up: &'a [f64],
    /// `[E, D, F]`.
    pub down: &'a [f64],
    /// `[E]`.
    pub scale: &'a [f64],
    /// `F`.
    pub width: usize,
}

/// What forward leaves for backward, a row for every expert of every token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Saved {
    /// `[N·used, F]`.
    pub gate: Vec<f64>,
    /// `[N·used, F]`.
    pub up: Vec<f64>,
    /// Output of the expert before scale and weight, `[N·used, D]`.
    pub down: Vec<f64>,
}

/// Gradients of inputs, and of the experts' matrices as if they were trained.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// `[N, D]`.
    pub dx: Vec<f64>,
    /// `[N, used]`.
    pub dweights: Vec<f64>,
    /// `[E, 2·F, D]`.
    pub dgate_up: Vec<f64>,
    /// `[E, D, F]`.
    pub ddown: Vec<f64>,
}

impl Experts<'_> {
    fn gate_up_of(&self, expert: usize, d: usize) -> &[f64] {
        row(self.gate_up, expert, 2 * self.width * d)
    }

    fn down_of(&self, expert: usize, d: usize) -> &[f64] {
        row(self.down, expert, d * self.width)
    }
}

/// `x` `[N, D]` -> `[N, D]`.
pub fn forward(x: &[f64], routing: &Routing, w: &Experts, d: usize) -> (Vec<f64>, Saved) {
    let (rows, f) = (x.len() / d, w.width);
    let used = routing.experts.len() / rows.max(1);
    let (mut y, mut saved) = (vec![0.0; x.len()], Saved::default());
    for n in 0..rows {
        for k in n * used..(n + 1) * used {
            let expert = routing.experts[k];
            let gate_up = linear::forward(row(x, n, d), w.gate_up_of(expert, d), d);
            let (gate, up) = gate_up.split_at(f);
            let down = linear::forward(&geglu::forward(gate, up), w.down_of(expert, d), f);
            add_scaled(row_mut(&mut y, n, d), routing.weights[k] * w.scale[expert], &down);
            saved.gate.extend(gate);
            saved.up.extend(up);
            saved.down.extend(down);
        }
    }
    (y, saved)
}

/// The mirror of [`forward`].
pub fn backward(dy: &[f64], x: &[f64], routing: &Routing, w: &Experts, saved: &Saved, d: usize) -> Gradients {
    let (rows, f) = (x.len() / d, w.width);
    let used = routing.experts.len() / rows.max(1);
    let mut gradients = Gradients {
        dx: vec![0.0; x.len()],
        dweights: vec![0.0; routing.weights.len()],
        dgate_up: vec![0.0; w.gate_up.len()],
        ddown: vec![0.0; w.down.len()],
    };
    for n in 0..rows {
        for k in n * used..(n + 1) * used {
            let expert = routing.experts[k];
            let (gate, up) = (row(&saved.gate, k, f), row(&saved.up, k, f));
            gradients.dweights[k] = w.scale[expert] * dot(row(dy, n, d), row(&saved.down, k, d));
            let mut ddown = vec![0.0; d];
            add_scaled(&mut ddown, routing.weights[k] * w.scale[expert], row(dy, n, d));
            outer(row_mut(&mut gradients.ddown, expert, d * f), &ddown, &geglu::forward(gate, up));
            let dgeglu = linear::backward(&ddown, w.down_of(expert, d), f);
            let (dgate, dup) = geglu::backward(&dgeglu, gate, up);
            let dgate_up = [dgate, dup].concat();
            outer(row_mut(&mut gradients.dgate_up, expert, 2 * f * d), &dgate_up, row(x, n, d));
            let dx = linear::backward(&dgate_up, w.gate_up_of(expert, d), d);
            add_scaled(row_mut(&mut gradients.dx, n, d), 1.0, &dx);
        }
    }
    gradients
}

/// `dw += dyᵀ·x` of one row.
fn outer(dw: &mut [f64], dy: &[f64], x: &[f64]) {
    for (o, g) in dy.iter().enumerate() {
        add_scaled(row_mut(dw, o, x.len()), *g, x);
    }
}
