//! The gates of the recurrence: `g = a·softplus(alpha + dt)`, the logarithm of a decay, and the rate `beta = σ(b)`.

/// `alpha`, `b` `[T, Hv]`, `a`, `dt` `[Hv]` -> `g`, `beta` `[T, Hv]`. `a` is negative, `−exp(A_log)`.
pub fn forward(alpha: &[f64], b: &[f64], a: &[f64], dt: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let heads = a.len();
    let g = |(i, alpha): (usize, &f64)| a[i % heads] * softplus(alpha + dt[i % heads]);
    (alpha.iter().enumerate().map(g).collect(), b.iter().map(|b| sigmoid(*b)).collect())
}

/// `dalpha = dg·a·σ(alpha + dt)`, `db = dbeta·beta·(1 − beta)`: all `[T, Hv]`; returns `(dalpha, db)`.
pub fn backward(
    dg: &[f64],
    dbeta: &[f64],
    alpha: &[f64],
    b: &[f64],
    a: &[f64],
    dt: &[f64],
) -> (Vec<f64>, Vec<f64>) {
    let heads = a.len();
    let dalpha = |i: usize| dg[i] * a[i % heads] * sigmoid(alpha[i] + dt[i % heads]);
    let db = |i: usize| dbeta[i] * sigmoid(b[i]) * sigmoid(-b[i]);
    ((0..dg.len()).map(dalpha).collect(), (0..dg.len()).map(db).collect())
}

/// `ln(1 + eˣ)`, without overflow.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softplus_is_the_logarithm_of_one_plus_the_exponential() {
        let (g, beta) = forward(&[0.5, 800.0], &[0.0, 3f64.ln()], &[-2.0, -1.0], &[0.5, 200.0]);
        assert!((g[0] + 2.0 * (1.0 + 1f64.exp()).ln()).abs() < 1e-15, "{}", g[0]);
        assert_eq!(g[1], -1000.0);
        assert_eq!((beta[0], (beta[1] - 0.75).abs() < 1e-15), (0.5, true));
    }
}
