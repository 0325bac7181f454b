//! The recurrence token by token, its definition: `P = e^g·S`, `u = β·(v − Pᵀ·k)`, `S = P + k·uᵀ`, `o = Sᵀ·q`. A head's state `S` is
//! `[K, K]`, keys by values, and zero before a sample's first token.

use super::{Gradients, Inputs, read, read_back, write};
use crate::reference::{add_scaled, dot, row_mut};

/// Output `[T, Hv, K]`.
pub fn forward(x: &Inputs) -> Vec<f64> {
    let mut out = vec![0.0; x.v.len()];
    for head in 0..x.value_heads {
        for (t, step) in steps(x, head).iter().enumerate() {
            row_mut(&mut out, t * x.value_heads + head, x.size).copy_from_slice(&read(&step.s, x.q(t, head)));
        }
    }
    out
}

/// Gradients of the inputs from that of the output, `dout` `[T, Hv, K]`.
pub fn backward(dout: &[f64], x: &Inputs) -> Gradients {
    let mut grads = Gradients::zero(x);
    for head in 0..x.value_heads {
        let mut ds = vec![0.0; x.size * x.size];
        for (t, Step { p, s, error }) in steps(x, head).iter().enumerate().rev() {
            let n = t * x.value_heads + head;
            let (q, k, dout) = (x.q(t, head), x.k(t, head), &dout[n * x.size..][..x.size]);
            let (g, beta) = x.gates(t, head);
            write(&mut ds, 1.0, q, dout);
            let u: Vec<f64> = error.iter().map(|e| beta * e).collect();
            let du = read(&ds, k);
            let mut dk = read_back(&ds, &u);
            let dv: Vec<f64> = du.iter().map(|du| beta * du).collect();
            add_scaled(&mut dk, -1.0, &read_back(p, &dv));
            grads.add(x, t, head, [&read_back(s, dout), &dk, &dv]);
            grads.beta[n] = dot(&du, error);
            write(&mut ds, -1.0, k, &dv); // that of P
            grads.g[n] = dot(&ds, p);
            let carried = if x.starts[t] as usize == t { 0.0 } else { g.exp() };
            ds.iter_mut().for_each(|ds| *ds *= carried);
        }
    }
    grads
}

/// One token of one head: the decayed state, the state behind the token, and `v − Pᵀ·k`.
struct Step {
    p: Vec<f64>,
    s: Vec<f64>,
    error: Vec<f64>,
}

fn steps(x: &Inputs, head: usize) -> Vec<Step> {
    let mut s = vec![0.0; x.size * x.size];
    let step = |t: usize| {
        let (g, beta) = x.gates(t, head);
        let carried = if x.starts[t] as usize == t { 0.0 } else { g.exp() };
        s.iter_mut().for_each(|s| *s *= carried);
        let p = s.clone();
        let mut error = x.v(t, head).to_vec();
        add_scaled(&mut error, -1.0, &read(&p, x.k(t, head)));
        write(&mut s, beta, x.k(t, head), &error);
        Step { p, s: s.clone(), error }
    };
    (0..x.starts.len()).map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One head of size 1: the state is a number.
    #[test]
    fn decays_before_it_reads_and_reads_before_it_writes() {
        let half = 0.5f64.ln();
        let x = Inputs {
            q: &[1.0, 1.0, 3.0, 1.0],
            k: &[1.0, 0.5, 1.0, 1.0],
            v: &[4.0, 2.0, 0.0, 5.0],
            g: &[half; 4],
            beta: &[1.0, 1.0, 0.0, 0.5],
            starts: &[0, 0, 0, 3],
            key_heads: 1,
            value_heads: 1,
            size: 1,
        };
        // 4; 4/2 + ½·(2 − ½·2) = 2.5; 2.5/2 = 1.25, read by 3; and a new sample: ½·5.
        assert_eq!(forward(&x), [4.0, 2.5, 3.75, 2.5]);
    }
}
