//! Causal, sliding-window, grouped-query attention over packed samples. Scores are `q·k` without a scale.

use super::{add_scaled, dot, row, row_mut};

/// `q` `[T, H, K]`, `k`, `v` `[T, G, K]`, `starts` `[T]` -> `out` `[T, H, K]` and the log-sum-exp of the scores, `lse` `[T, H]`.
///
/// Query row `i` attends to the key rows `j` with `starts[i] <= j <= i` and, with a window `w`, `i - w < j`.
/// Query head `h` reads key/value head `h / (H/G)`.
pub fn forward(
    q: &[f64],
    k: &[f64],
    v: &[f64],
    starts: &[u32],
    window: Option<usize>,
    heads: usize,
    kv_heads: usize,
) -> (Vec<f64>, Vec<f64>) {
    forward_capped(q, k, v, starts, window, heads, kv_heads, None)
}

/// [`forward`] with `c·tanh(s/c)` in the place of every score `s`, where `softcap` is `c`.
pub fn forward_capped(
    q: &[f64],
    k: &[f64],
    v: &[f64],
    starts: &[u32],
    window: Option<usize>,
    heads: usize,
    kv_heads: usize,
    softcap: Option<f64>,
) -> (Vec<f64>, Vec<f64>) {
    let score = |q: &[f64], k: &[f64]| capped(dot(q, k), softcap);
    let tokens = starts.len();
    let size = q.len() / (tokens * heads);
    let mut out = vec![0.0; q.len()];
    let mut lse = vec![0.0; tokens * heads];
    for i in 0..tokens {
        for h in 0..heads {
            let g = h / (heads / kv_heads);
            let q = row(q, i * heads + h, size);
            let first = first_visible(i, starts, window);

            let mut max = f64::NEG_INFINITY;
            for j in first..=i {
                max = max.max(score(q, row(k, j * kv_heads + g, size)));
            }
            let mut sum = 0.0;
            for j in first..=i {
                sum += (score(q, row(k, j * kv_heads + g, size)) - max).exp();
            }
            let row_lse = max + sum.ln();
            lse[i * heads + h] = row_lse;
            for j in first..=i {
                let p = (score(q, row(k, j * kv_heads + g, size)) - row_lse).exp();
                add_scaled(row_mut(&mut out, i * heads + h, size), p, row(v, j * kv_heads + g, size));
            }
        }
    }
    (out, lse)
}

/// Adds sinks `[H]` to the result of [`forward`]: head `h` has one more score, `sinks[h]`, to which no value belongs. So the other
/// weights shrink by `exp(lse − lse′)`, where `lse′` has the sink's score, too.
///
/// [`backward`] stays as it is with the new `out` and `lse`: the sink's `dP` is 0, and sinks are frozen.
pub fn add_sinks(out: &mut [f64], lse: &mut [f64], sinks: &[f64]) {
    let size = out.len() / lse.len().max(1);
    for n in 0..lse.len() {
        let sink = sinks[n % sinks.len()];
        let max = lse[n].max(sink);
        let with_sink = max + ((lse[n] - max).exp() + (sink - max).exp()).ln();
        let shrink = (lse[n] - with_sink).exp();
        row_mut(out, n, size).iter_mut().for_each(|o| *o *= shrink);
        lse[n] = with_sink;
    }
}

/// Returns `dq` `[T, H, K]` and adds to `dk`, `dv` `[T, G, K]`, which layers may share; other shapes as in [`forward`].
///
/// `P = exp(q·k − lse)`, `dP = dout·vᵀ`, `dS = P ⊙ (dP − ⟨dout, out⟩)`; `dq = dS·k`, `dk += dSᵀ·q`, `dv += Pᵀ·dout`.
pub fn backward(
    dout: &[f64],
    q: &[f64],
    k: &[f64],
    v: &[f64],
    starts: &[u32],
    window: Option<usize>,
    heads: usize,
    kv_heads: usize,
    out: &[f64],
    lse: &[f64],
    dk: &mut [f64],
    dv: &mut [f64],
) -> Vec<f64> {
    backward_capped(dout, q, k, v, starts, window, heads, kv_heads, out, lse, dk, dv, None)
}

/// [`backward`] of [`forward_capped`]: `dS` has the factor `1 − (s/c)²` besides, where `s` is the capped score.
pub fn backward_capped(
    dout: &[f64],
    q: &[f64],
    k: &[f64],
    v: &[f64],
    starts: &[u32],
    window: Option<usize>,
    heads: usize,
    kv_heads: usize,
    out: &[f64],
    lse: &[f64],
    dk: &mut [f64],
    dv: &mut [f64],
    softcap: Option<f64>,
) -> Vec<f64> {
    let tokens = starts.len();
    let size = q.len() / (tokens * heads);
    let mut dq = vec![0.0; q.len()];
    for i in 0..tokens {
        for h in 0..heads {
            let g = h / (heads / kv_heads);
            let n = i * heads + h;
            let (q, dout) = (row(q, n, size), row(dout, n, size));
            let mean_dp = dot(dout, row(out, n, size)); // Σ_j P_j·dP_j
            for j in first_visible(i, starts, window)..=i {
                let m = j * kv_heads + g;
                let score = capped(dot(q, row(k, m, size)), softcap);
                let p = (score - lse[n]).exp();
                let dp = dot(dout, row(v, m, size));
                let slope = softcap.map_or(1.0, |cap| 1.0 - (score / cap).powi(2));
                let ds = slope * p * (dp - mean_dp);
                add_scaled(row_mut(&mut dq, n, size), ds, row(k, m, size));
                add_scaled(row_mut(dk, m, size), ds, q);
                add_scaled(row_mut(dv, m, size), p, dout);
            }
        }
    }
    dq
}

/// A score under a softcap.
fn capped(score: f64, softcap: Option<f64>) -> f64 {
    softcap.map_or(score, |cap| cap * (score / cap).tanh())
}

/// The first key row that query row `i` attends to.
fn first_visible(i: usize, starts: &[u32], window: Option<usize>) -> usize {
    let start = starts[i] as usize;
    match window {
        Some(w) => start.max((i + 1).saturating_sub(w)),
        None => start,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Zero queries attend uniformly: the output is the mean of the visible values, and lse is ln of their number.
    #[test]
    fn sees_its_sample_its_past_and_its_window() {
        let q = [0.0; 5];
        let v = [1.0, 2.0, 4.0, 8.0, 16.0];
        let starts = [0, 0, 0, 3, 3];
        let (out, lse) = forward(&q, &v, &v, &starts, None, 1, 1);
        assert_close(&out, &[1.0, 1.5, 7.0 / 3.0, 8.0, 12.0]);
        assert_close(&lse, &[0.0, 2f64.ln(), 3f64.ln(), 0.0, 2f64.ln()]);
        let (out, _) = forward(&q, &v, &v, &starts, Some(2), 1, 1);
        assert_close(&out, &[1.0, 1.5, 3.0, 8.0, 12.0]); // Row 2 does not see row 0.
    }

    /// Two consecutive query heads share a key/value head; the score is the plain dot product.
    #[test]
    fn query_heads_are_grouped_and_scores_not_scaled() {
        let q = [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0];
        let k = [0.0, 0.0, 1.0, 2.0]; // Second token: head 0 scores 1, head 1 scores 2.
        let v = [0.0, 0.0, 1.0, 10.0];
        let (out, lse) = forward(&q, &k, &v, &[0, 0], None, 4, 2);
        let p = |score: f64| score.exp() / (1.0 + score.exp());
        assert_close(&out[4..], &[p(1.0), p(1.0), 10.0 * p(2.0), 10.0 * p(2.0)]);
        assert_close(&lse[4..6], &[(1.0 + 1f64.exp()).ln(); 2]);
    }

    /// Zero queries and a sink of ln 2 weigh like two more keys whose values are zero.
    #[test]
    fn a_sink_takes_its_share() {
        let (mut out, mut lse) = forward(&[0.0; 6], &[0.0; 6], &[1.0; 6], &[0, 0, 0], None, 2, 2);
        add_sinks(&mut out, &mut lse, &[2f64.ln(), -1e9]);
        assert_close(&out, &[1.0 / 3.0, 1.0, 0.5, 1.0, 0.6, 1.0]);
        assert_close(&lse, &[3f64.ln(), 0.0, 4f64.ln(), 2f64.ln(), 5f64.ln(), 3f64.ln()]);
    }

    fn assert_close(found: &[f64], expected: &[f64]) {
        for i in 0..expected.len() {
            let difference = (found[i] - expected[i]).abs();
            assert!(difference < 1e-14, "element {i}: expected {}, found {}", expected[i], found[i]);
        }
    }
}
