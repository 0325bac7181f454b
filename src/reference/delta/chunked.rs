//! The recurrence in chunks of tokens: within a chunk products and a triangular solve, between chunks one state per head.
//!
//! With `D[i, j] = exp(g[j + 1] + … + g[i])` for tokens of one sample and `j <= i`, else 0, and `Γ[i] = D[i, before the chunk]`, 0
//! where the token's sample begins in the chunk:
//!
//! ```text
//! A[i, j] = β[i]·D[i, j]·⟨k[i], k[j]⟩ for j < i      P[i, j] = D[i, j]·⟨q[i], k[j]⟩ for j <= i
//! (I + A)·U = β·(V − Γ·K·S)      O = Γ·Q·S + P·U      S' = Γ[last]·S + Σ D[last, j]·k[j]·u[j]ᵀ
//! ```
//!
//! Chunks begin at multiples of their length, wherever samples begin.

use super::{Gradients, Inputs, read, read_back, write};
use crate::reference::{add_scaled, dot, row, row_mut};

/// Output `[T, Hv, K]`, in chunks of `length` tokens.
pub fn forward(x: &Inputs, length: usize) -> Vec<f64> {
    let mut out = vec![0.0; x.v.len()];
    for head in 0..x.value_heads {
        for chunk in chunks(x, head, length) {
            for i in 0..chunk.tokens {
                let mut o = vec![0.0; x.size];
                add_scaled(&mut o, chunk.carried(i), &read(&chunk.state, chunk.q(i)));
                for j in 0..=i {
                    add_scaled(&mut o, chunk.decay(i, j) * dot(chunk.q(i), chunk.k(j)), chunk.u(j));
                }
                let n = (chunk.first + i) * x.value_heads + head;
                row_mut(&mut out, n, x.size).copy_from_slice(&o);
            }
        }
    }
    out
}

/// Gradients of the inputs from that of the output, `dout` `[T, Hv, K]`, in chunks of `length` tokens.
pub fn backward(dout: &[f64], x: &Inputs, length: usize) -> Gradients {
    let mut grads = Gradients::zero(x);
    for head in 0..x.value_heads {
        let mut dstate = vec![0.0; x.size * x.size];
        for chunk in chunks(x, head, length).iter().rev() {
            let dout = |i: usize| row(dout, (chunk.first + i) * x.value_heads + head, x.size);
            let dout: Vec<&[f64]> = (0..chunk.tokens).map(dout).collect();
            let r = chunk.errors(&dout, &dstate);
            chunk.gradients(&dout, &r, &dstate, &mut grads);
            dstate = chunk.state_gradient(&dout, &r, &dstate);
        }
    }
    grads
}

/// One chunk of one value head.
struct Chunk<'a> {
    x: &'a Inputs<'a>,
    head: usize,
    first: usize,
    tokens: usize,
    /// Sums of `g` from the chunk's or the sample's first token on.
    sums: Vec<f64>,
    /// State before the chunk.
    state: Vec<f64>,
    /// `U` `[tokens, K]`.
    u: Vec<f64>,
}

fn chunks<'a>(x: &'a Inputs<'a>, head: usize, length: usize) -> Vec<Chunk<'a>> {
    let mut state = vec![0.0; x.size * x.size];
    let mut chunks = Vec::new();
    for first in (0..x.starts.len()).step_by(length) {
        let chunk = Chunk::new(x, head, first, length.min(x.starts.len() - first), state);
        state = chunk.next_state();
        chunks.push(chunk);
    }
    chunks
}

impl<'a> Chunk<'a> {
    fn new(x: &'a Inputs<'a>, head: usize, first: usize, tokens: usize, state: Vec<f64>) -> Chunk<'a> {
        let mut sums: Vec<f64> = Vec::new();
        for i in 0..tokens {
            let before = if i == 0 || x.starts[first + i] as usize == first + i { 0.0 } else { sums[i - 1] };
            sums.push(before + x.gates(first + i, head).0);
        }
        let mut chunk = Chunk { x, head, first, tokens, sums, state, u: Vec::new() };
        for i in 0..tokens {
            let mut error = x.v(first + i, head).to_vec();
            add_scaled(&mut error, -chunk.carried(i), &read(&chunk.state, chunk.k(i)));
            for j in 0..i {
                add_scaled(&mut error, -chunk.decay(i, j) * dot(chunk.k(i), chunk.k(j)), chunk.u(j));
            }
            let beta = chunk.beta(i);
            chunk.u.extend(error.iter().map(|error| beta * error));
        }
        chunk
    }

    fn q(&self, i: usize) -> &[f64] {
        self.x.q(self.first + i, self.head)
    }

    fn k(&self, i: usize) -> &[f64] {
        self.x.k(self.first + i, self.head)
    }

    fn u(&self, i: usize) -> &[f64] {
        row(&self.u, i, self.x.size)
    }

    fn beta(&self, i: usize) -> f64 {
        self.x.gates(self.first + i, self.head).1
    }

    /// `D[i, j]`.
    fn decay(&self, i: usize, j: usize) -> f64 {
        let same_sample = self.x.starts[self.first + i] as usize <= self.first + j;
        if same_sample { (self.sums[i] - self.sums[j]).exp() } else { 0.0 }
    }

    /// `Γ[i]`: the factor of the state before the chunk.
    fn carried(&self, i: usize) -> f64 {
        if (self.x.starts[self.first + i] as usize) < self.first { self.sums[i].exp() } else { 0.0 }
    }

    fn next_state(&self) -> Vec<f64> {
        let last = self.tokens - 1;
        let mut state: Vec<f64> = self.state.iter().map(|s| self.carried(last) * s).collect();
        for j in 0..self.tokens {
            write(&mut state, self.decay(last, j), self.k(j), self.u(j));
        }
        state
    }

    /// Gradient of the right side of the solve, `(I + A)⁻ᵀ·dU` `[tokens, K]`, where `dstate` is that of the state behind the chunk.
    fn errors(&self, dout: &[&[f64]], dstate: &[f64]) -> Vec<f64> {
        let size = self.x.size;
        let mut r = vec![0.0; self.tokens * size];
        for j in (0..self.tokens).rev() {
            let mut du = read(dstate, self.k(j));
            du.iter_mut().for_each(|du| *du *= self.decay(self.tokens - 1, j));
            for i in j..self.tokens {
                add_scaled(&mut du, self.decay(i, j) * dot(self.q(i), self.k(j)), dout[i]);
            }
            for i in j + 1..self.tokens {
                let a = self.beta(i) * self.decay(i, j) * dot(self.k(i), self.k(j));
                add_scaled(&mut du, -a, row(&r, i, size));
            }
            row_mut(&mut r, j, size).copy_from_slice(&du);
        }
        r
    }

    /// Gradient of the state before the chunk.
    fn state_gradient(&self, dout: &[&[f64]], r: &[f64], dstate: &[f64]) -> Vec<f64> {
        let last = self.carried(self.tokens - 1);
        let mut before: Vec<f64> = dstate.iter().map(|ds| last * ds).collect();
        for i in 0..self.tokens {
            let decay = self.carried(i);
            write(&mut before, decay, self.q(i), dout[i]);
            write(&mut before, -decay * self.beta(i), self.k(i), row(r, i, self.x.size));
        }
        before
    }

    /// Adds the chunk's gradients.
    fn gradients(&self, dout: &[&[f64]], r: &[f64], dstate: &[f64], grads: &mut Gradients) {
        let (x, last) = (self.x, self.tokens - 1);
        let mut dsums = vec![0.0; self.tokens]; // of `sums`
        let mut dq = vec![0.0; self.tokens * x.size];
        let mut dk = dq.clone();
        dsums[last] += self.carried(last) * dot(&self.state, dstate);
        for i in 0..self.tokens {
            let (beta, r_i) = (self.beta(i), row(r, i, x.size));
            let (seen, in_state) = (self.carried(i), read_back(&self.state, r_i));
            let from_q: Vec<f64> = read_back(&self.state, dout[i]).iter().map(|d| seen * d).collect();
            let from_k: Vec<f64> = in_state.iter().map(|d| -seen * d).collect();
            let written = read_back(dstate, self.u(i));
            let written: Vec<f64> = written.iter().map(|d| self.decay(last, i) * d).collect();
            dsums[i] += dot(self.q(i), &from_q) + dot(self.k(i), &from_k) * beta - dot(self.k(i), &written);
            dsums[last] += dot(self.k(i), &written);
            let mut dbeta = dot(r_i, x.v(self.first + i, self.head)) + dot(self.k(i), &from_k);
            add_scaled(row_mut(&mut dq, i, x.size), 1.0, &from_q);
            add_scaled(row_mut(&mut dk, i, x.size), beta, &from_k);
            add_scaled(row_mut(&mut dk, i, x.size), 1.0, &written);
            for j in 0..=i {
                let decay = self.decay(i, j);
                let dp = decay * dot(dout[i], self.u(j));
                let da = if j < i { -decay * dot(r_i, self.u(j)) } else { 0.0 };
                let kk = dot(self.k(i), self.k(j));
                let both = dp * dot(self.q(i), self.k(j)) + beta * da * kk;
                dsums[i] += both;
                dsums[j] -= both;
                dbeta += da * kk;
                add_scaled(row_mut(&mut dq, i, x.size), dp, self.k(j));
                add_scaled(row_mut(&mut dk, j, x.size), dp, self.q(i));
                add_scaled(row_mut(&mut dk, i, x.size), beta * da, self.k(j));
                add_scaled(row_mut(&mut dk, j, x.size), beta * da, self.k(i));
            }
            grads.beta[(self.first + i) * x.value_heads + self.head] = dbeta;
        }
        let mut dg = 0.0;
        for i in (0..self.tokens).rev() {
            let t = self.first + i;
            dg += dsums[i];
            grads.g[t * x.value_heads + self.head] = dg;
            if x.starts[t] as usize == t {
                dg = 0.0;
            }
            let dv: Vec<f64> = row(r, i, x.size).iter().map(|r| self.beta(i) * r).collect();
            grads.add(x, t, self.head, [row(&dq, i, x.size), row(&dk, i, x.size), &dv]);
        }
    }
}
