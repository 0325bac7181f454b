//! Causal depthwise convolution over packed samples: `y[t] = Σ_j w[j]·x[t − n + 1 + j]`. Rows before a sample's first are zero.

/// `x` `[T, C]`, `w` `[C, n]`, `starts` `[T]` -> `[T, C]`. The last of the `n` weights of a channel is that of the token itself.
pub fn forward(x: &[f64], w: &[f64], starts: &[u32]) -> Vec<f64> {
    let mut y = vec![0.0; x.len()];
    taps(x.len(), w.len(), starts, |to, from, weight| y[to] += w[weight] * x[from]);
    y
}

/// `dy` `[T, C]` -> `dx` `[T, C]`. The weights are frozen.
pub fn backward(dy: &[f64], w: &[f64], starts: &[u32]) -> Vec<f64> {
    let mut dx = vec![0.0; dy.len()];
    taps(dy.len(), w.len(), starts, |to, from, weight| dx[from] += w[weight] * dy[to]);
    dx
}

/// Calls `tap` with the output, the input and the weight of every product.
fn taps(values: usize, weights: usize, starts: &[u32], mut tap: impl FnMut(usize, usize, usize)) {
    let channels = values / starts.len().max(1);
    let of_each = weights / channels.max(1);
    assert_eq!((values, weights), (starts.len() * channels, of_each * channels));
    for t in 0..starts.len() {
        for j in (0..of_each).filter(|j| t + j + 1 >= starts[t] as usize + of_each) {
            for c in 0..channels {
                tap(t * channels + c, (t + j + 1 - of_each) * channels + c, c * of_each + j);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_weight_is_the_tokens_own_and_samples_do_not_mix() {
        let (x, w) = ([1.0, 10.0, 100.0, 1000.0, 10_000.0, 7.0], [5.0, 4.0, 3.0, 2.0]);
        let y = forward(&x, &w, &[0, 0, 0, 0, 0, 5]);
        assert_eq!(y, [2.0, 23.0, 234.0, 2345.0, 23_450.0, 14.0]);
    }
}
