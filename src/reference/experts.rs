//! A mixture of experts after its router: `y[n] = Σ_k weight[n, k]·scale[e]·Down_e·gated(GateUp_e·x[n])`, where `e` is the
//! `k`-th expert of `n`; both matrices may have a frozen bias. Each matrix may have its own adapter, like those of PEFT's `target_parameters`. Dropout is applied
//! before `A`, drawn separately for every active expert of a token; PEFT does not support that.
//!
//! An expert's gate rows precede its up rows. Runs expert by expert and token by token.

use crate::base::config::Activation;

use super::{Routing, add_scaled, dot, gated, linear, lora, row, row_mut};

/// The matrices of all experts of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Experts<'a> {
    /// `[E, 2·F, D]`.
    pub gate_up: &'a [f64],
    /// `[E, D, F]`.
    pub down: &'a [f64],
    /// Biases of `gate_up`, `[E, 2·F]`; empty without.
    pub gate_up_bias: &'a [f64],
    /// Biases of `down`, `[E, D]`; empty without.
    pub down_bias: &'a [f64],
    /// `[E]`.
    pub scale: &'a [f64],
    /// `F`.
    pub width: usize,
    /// Function of the gate.
    pub activation: Activation,
    /// LoRA on `gate_up`.
    pub gate_up_lora: Option<Lora<'a>>,
    /// LoRA on `down`.
    pub down_lora: Option<Lora<'a>>,
}

/// The adapters of one matrix of every expert.
#[derive(Clone, Copy, Debug)]
pub struct Lora<'a> {
    /// `[E, R, in]`.
    pub a: &'a [f64],
    /// `[E, out, R]`.
    pub b: &'a [f64],
    /// `R`.
    pub rank: usize,
    /// Factor on `B·A`.
    pub scale: f64,
    /// Inverted dropout mask of the input, `[N·used, in]`, with a row for every active expert of every token.
    pub mask: Option<&'a [f64]>,
}

impl Lora<'_> {
    /// Adds the adapter's output to `y` `[1, out]` and returns `z` `[R]`. `x` `[1, in]`. `choice`: row of the mask; `expert`:
    /// index of the expert, one of `experts`.
    fn forward(
        &self,
        x: &[f64],
        choice: usize,
        (expert, experts): (usize, usize),
        y: &mut [f64],
    ) -> Vec<f64> {
        let (a, b) = self.of(expert, experts);
        lora::forward(x, a, b, self.rank, self.scale, self.mask_of(choice, x.len()), y)
    }

    fn mask_of(&self, choice: usize, columns: usize) -> Option<&[f64]> {
        self.mask.map(|mask| row(mask, choice, columns))
    }

    /// Adds to `dx` and to the gradients of `A` and `B` of one expert.
    fn backward(
        &self,
        dy: &[f64],
        x: &[f64],
        z: &[f64],
        choice: usize,
        (expert, experts): (usize, usize),
        dx: &mut [f64],
        [da, db]: &mut [Vec<f64>; 2],
    ) {
        let (a, b) = self.of(expert, experts);
        let (da, db) = (row_mut(da, expert, a.len()), row_mut(db, expert, b.len()));
        let mask = self.mask_of(choice, x.len());
        lora::backward(dy, x, a, b, self.rank, self.scale, mask, z, dx, da, db);
    }

    fn of(&self, expert: usize, experts: usize) -> (&[f64], &[f64]) {
        (row(self.a, expert, self.a.len() / experts), row(self.b, expert, self.b.len() / experts))
    }

    /// Zero gradients of `A` and `B`.
    fn zeros(&self) -> [Vec<f64>; 2] {
        [vec![0.0; self.a.len()], vec![0.0; self.b.len()]]
    }
}

/// The activations that backward needs: one row per active expert of each token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Saved {
    /// Gate before the activation, `[N·used, F]`.
    pub gate: Vec<f64>,
    /// Up projection, `[N·used, F]`.
    pub up: Vec<f64>,
    /// Output of the expert before scale and weight, `[N·used, D]`.
    pub down: Vec<f64>,
    /// `x·Aᵀ` of `gate_up_lora`, `[N·used, R]`.
    pub z_gate_up: Vec<f64>,
    /// `x·Aᵀ` of `down_lora`, `[N·used, R]`.
    pub z_down: Vec<f64>,
}

/// Gradients of the inputs, and of the experts' matrices as if they were trained.
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
    /// `A` `[E, R, in]` and `B` `[E, out, R]` of `gate_up_lora`.
    pub dgate_up_lora: Option<[Vec<f64>; 2]>,
    /// Gradients of `down_lora`.
    pub ddown_lora: Option<[Vec<f64>; 2]>,
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
            let mut gate_up = linear::forward(row(x, n, d), w.gate_up_of(expert, d), d);
            add_bias(&mut gate_up, w.gate_up_bias, expert);
            if let Some(lora) = w.gate_up_lora {
                let of = (expert, w.scale.len());
                saved.z_gate_up.extend(lora.forward(row(x, n, d), k, of, &mut gate_up));
            }
            let (gate, up) = gate_up.split_at(f);
            let y_gated = gated::forward(gate, up, w.activation);
            let mut down = linear::forward(&y_gated, w.down_of(expert, d), f);
            add_bias(&mut down, w.down_bias, expert);
            if let Some(lora) = w.down_lora {
                saved.z_down.extend(lora.forward(&y_gated, k, (expert, w.scale.len()), &mut down));
            }
            add_scaled(row_mut(&mut y, n, d), routing.weights[k] * w.scale[expert], &down);
            saved.gate.extend(gate);
            saved.up.extend(up);
            saved.down.extend(down);
        }
    }
    (y, saved)
}

/// Gradients of [`forward`].
pub fn backward(dy: &[f64], x: &[f64], routing: &Routing, w: &Experts, saved: &Saved, d: usize) -> Gradients {
    let (rows, f) = (x.len() / d, w.width);
    let used = routing.experts.len() / rows.max(1);
    let mut gradients = Gradients {
        dx: vec![0.0; x.len()],
        dweights: vec![0.0; routing.weights.len()],
        dgate_up: vec![0.0; w.gate_up.len()],
        ddown: vec![0.0; w.down.len()],
        dgate_up_lora: w.gate_up_lora.map(|lora| lora.zeros()),
        ddown_lora: w.down_lora.map(|lora| lora.zeros()),
    };
    for n in 0..rows {
        for k in n * used..(n + 1) * used {
            let expert = routing.experts[k];
            let (gate, up) = (row(&saved.gate, k, f), row(&saved.up, k, f));
            gradients.dweights[k] = w.scale[expert] * dot(row(dy, n, d), row(&saved.down, k, d));
            let mut ddown = vec![0.0; d];
            add_scaled(&mut ddown, routing.weights[k] * w.scale[expert], row(dy, n, d));
            let y_gated = gated::forward(gate, up, w.activation);
            outer(row_mut(&mut gradients.ddown, expert, d * f), &ddown, &y_gated);
            let mut dgated = linear::backward(&ddown, w.down_of(expert, d), f);
            if let (Some(lora), Some(gradients)) = (w.down_lora, &mut gradients.ddown_lora) {
                let (z, of) = (row(&saved.z_down, k, lora.rank), (expert, w.scale.len()));
                lora.backward(&ddown, &y_gated, z, k, of, &mut dgated, gradients);
            }
            let (dgate, dup) = gated::backward(&dgated, gate, up, w.activation);
            let dgate_up = [dgate, dup].concat();
            outer(row_mut(&mut gradients.dgate_up, expert, 2 * f * d), &dgate_up, row(x, n, d));
            let mut dx = linear::backward(&dgate_up, w.gate_up_of(expert, d), d);
            if let (Some(lora), Some(gradients)) = (w.gate_up_lora, &mut gradients.dgate_up_lora) {
                let (z, of) = (row(&saved.z_gate_up, k, lora.rank), (expert, w.scale.len()));
                lora.backward(&dgate_up, row(x, n, d), z, k, of, &mut dx, gradients);
            }
            add_scaled(row_mut(&mut gradients.dx, n, d), 1.0, &dx);
        }
    }
    gradients
}

/// Adds the bias of one expert to its output, where experts have any.
fn add_bias(y: &mut [f64], biases: &[f64], expert: usize) {
    if !biases.is_empty() {
        add_scaled(y, 1.0, row(biases, expert, y.len()));
    }
}

/// `dw += dyᵀ·x` for one row.
fn outer(dw: &mut [f64], dy: &[f64], x: &[f64]) {
    for (o, g) in dy.iter().enumerate() {
        add_scaled(row_mut(dw, o, x.len()), *g, x);
    }
}
