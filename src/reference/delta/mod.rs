//! The gated delta net, a linear attention whose state every token decays and corrects, over packed samples.
//!
//! Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464, as Qwen 3.5 has it. A causal [`conv`] with SiLU gives queries, keys and values;
//! queries and keys are [`l2_norm`]ed; [`gates`] gives a decay and a rate per value head; [`recurrence`] is the definition, and
//! [`chunked`] the form that kernels compute. [`net`] is all of it. The RMSNorm and the gate behind it are [`super::rms_norm`] and [`super::gated`].

pub mod chunked;
pub mod conv;
pub mod gates;
pub mod l2_norm;
pub mod net;
pub mod recurrence;

/// Inputs of the recurrence. Value head `h` reads the query and key head `h mod Hk`.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// Queries `[T, Hk, K]`, normed and scaled.
    pub q: &'a [f64],
    /// Keys `[T, Hk, K]`, normed.
    pub k: &'a [f64],
    /// Values `[T, Hv, K]`.
    pub v: &'a [f64],
    /// Logarithms of the decays `[T, Hv]`.
    pub g: &'a [f64],
    /// Rates `[T, Hv]`.
    pub beta: &'a [f64],
    /// First token of each token's sample `[T]`.
    pub starts: &'a [u32],
    /// `Hk`.
    pub key_heads: usize,
    /// `Hv`.
    pub value_heads: usize,
    /// `K`.
    pub size: usize,
}

/// Gradients of [`Inputs`], by the same names.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// `[T, Hk, K]`, summed over the value heads that read it.
    pub q: Vec<f64>,
    /// `[T, Hk, K]`, summed over the value heads that read it.
    pub k: Vec<f64>,
    /// `[T, Hv, K]`.
    pub v: Vec<f64>,
    /// `[T, Hv]`.
    pub g: Vec<f64>,
    /// `[T, Hv]`.
    pub beta: Vec<f64>,
}

impl<'a> Inputs<'a> {
    fn q(&self, t: usize, head: usize) -> &'a [f64] {
        super::row(self.q, t * self.key_heads + head % self.key_heads, self.size)
    }

    fn k(&self, t: usize, head: usize) -> &'a [f64] {
        super::row(self.k, t * self.key_heads + head % self.key_heads, self.size)
    }

    fn v(&self, t: usize, head: usize) -> &'a [f64] {
        super::row(self.v, t * self.value_heads + head, self.size)
    }

    /// The decay's logarithm and the rate.
    fn gates(&self, t: usize, head: usize) -> (f64, f64) {
        (self.g[t * self.value_heads + head], self.beta[t * self.value_heads + head])
    }
}

impl Gradients {
    fn zero(x: &Inputs) -> Gradients {
        let zeros = |like: &[f64]| vec![0.0; like.len()];
        Gradients { q: zeros(x.q), k: zeros(x.k), v: zeros(x.v), g: zeros(x.g), beta: zeros(x.beta) }
    }

    /// Adds to the gradients of the query, the key and the value of token `t` in value head `head`.
    fn add(&mut self, x: &Inputs, t: usize, head: usize, [dq, dk, dv]: [&[f64]; 3]) {
        let key = t * x.key_heads + head % x.key_heads;
        super::add_scaled(super::row_mut(&mut self.q, key, x.size), 1.0, dq);
        super::add_scaled(super::row_mut(&mut self.k, key, x.size), 1.0, dk);
        super::add_scaled(super::row_mut(&mut self.v, t * x.value_heads + head, x.size), 1.0, dv);
    }
}

/// `sᵀ·x` for a state `s` `[K, K]`, keys by values, and `x` by key.
fn read(s: &[f64], x: &[f64]) -> Vec<f64> {
    let mut y = vec![0.0; x.len()];
    for (row, x) in s.chunks_exact(y.len()).zip(x) {
        super::add_scaled(&mut y, *x, row);
    }
    y
}

/// `s·x` for a state `s` `[K, K]`, keys by values, and `x` by value.
fn read_back(s: &[f64], x: &[f64]) -> Vec<f64> {
    s.chunks_exact(x.len()).map(|row| super::dot(row, x)).collect()
}

/// `s += scale·k·uᵀ` for a state `s` `[K, K]`.
fn write(s: &mut [f64], scale: f64, k: &[f64], u: &[f64]) {
    for (row, k) in s.chunks_exact_mut(u.len()).zip(k) {
        super::add_scaled(row, scale * k, u);
    }
}
