//! The whole net between its projections: convolution with SiLU, norms of queries and keys, gates, recurrence.

use super::{Inputs, conv, gates, l2_norm, recurrence};
use crate::base::config::{Activation, DeltaNet};
use crate::reference::{gated, row};

/// The frozen parameters and the shape of a net.
#[derive(Clone, Copy)]
pub struct Net<'a> {
    /// Heads and their size.
    pub shape: DeltaNet,
    /// Weights of the convolution `[C, 4]`.
    pub taps: &'a [f64],
    /// Factors of the decays, `−exp(A_log)`, `[Hv]`.
    pub a: &'a [f64],
    /// Biases of the decays `[Hv]`.
    pub dt: &'a [f64],
    /// ε of the norms.
    pub eps: f64,
    /// First token of each token's sample `[T]`.
    pub starts: &'a [u32],
}

/// Outputs of the projections, or their gradients.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Projected {
    /// Queries, keys and values `[T, C]`.
    pub qkv: Vec<f64>,
    /// Decays before their function `[T, Hv]`.
    pub alpha: Vec<f64>,
    /// Rates before their sigmoid `[T, Hv]`.
    pub beta: Vec<f64>,
}

/// Inputs of the recurrence, and the values before them.
struct Mixed {
    /// Behind the convolution, before SiLU, `[T, C]`.
    sums: Vec<f64>,
    /// Queries and keys before their norm.
    raw: [Vec<f64>; 2],
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    g: Vec<f64>,
    beta: Vec<f64>,
}

impl Net<'_> {
    /// The output `[T, Hv, K]`.
    pub fn forward(&self, x: &Projected) -> Vec<f64> {
        recurrence::forward(&self.inputs(&self.mixed(x)))
    }

    /// The gradients of the projections' outputs, from that of the output.
    pub fn backward(&self, dout: &[f64], x: &Projected) -> Projected {
        let (size, eps) = (self.shape.head_size, self.eps);
        let mixed = self.mixed(x);
        let d = recurrence::backward(dout, &self.inputs(&mixed));
        let dq = l2_norm::backward(&d.q, &mixed.raw[0], size, eps, self.scale());
        let dk = l2_norm::backward(&d.k, &mixed.raw[1], size, eps, 1.0);
        let (keys, values) = (self.shape.keys(), self.shape.values());
        let of_token = |t: usize| [row(&dq, t, keys), row(&dk, t, keys), row(&d.v, t, values)].concat();
        let dmixed: Vec<f64> = (0..self.starts.len()).flat_map(of_token).collect();
        let ones = vec![1.0; dmixed.len()];
        let (dsums, _) = gated::backward(&dmixed, &mixed.sums, &ones, Activation::Silu);
        let (alpha, beta) = gates::backward(&d.g, &d.beta, &x.alpha, &x.beta, self.a, self.dt);
        Projected { qkv: conv::backward(&dsums, self.taps, self.starts), alpha, beta }
    }

    fn mixed(&self, x: &Projected) -> Mixed {
        let (size, eps, shape) = (self.shape.head_size, self.eps, &self.shape);
        let sums = conv::forward(&x.qkv, self.taps, self.starts);
        let mixed = gated::forward(&sums, &vec![1.0; sums.len()], Activation::Silu);
        let columns = |from: usize, to: usize| -> Vec<f64> {
            mixed.chunks_exact(shape.channels()).flat_map(|row| row[from..to].to_vec()).collect()
        };
        let raw = [columns(0, shape.keys()), columns(shape.keys(), 2 * shape.keys())];
        let (g, beta) = gates::forward(&x.alpha, &x.beta, self.a, self.dt);
        Mixed {
            q: l2_norm::forward(&raw[0], size, eps, self.scale()),
            k: l2_norm::forward(&raw[1], size, eps, 1.0),
            v: columns(2 * shape.keys(), shape.channels()),
            g,
            beta,
            raw,
            sums,
        }
    }

    fn inputs<'a>(&'a self, mixed: &'a Mixed) -> Inputs<'a> {
        let Mixed { q, k, v, g, beta, .. } = mixed;
        let DeltaNet { key_heads, value_heads, head_size } = self.shape;
        Inputs { q, k, v, g, beta, starts: self.starts, key_heads, value_heads, size: head_size }
    }

    /// The factor on the queries, `1/√K`.
    fn scale(&self) -> f64 {
        (self.shape.head_size as f64).powf(-0.5)
    }
}
