//! Heads of keys and values of a latent vector: `[T, H, K]` of a part that all heads share, each head's own part, and zeros behind.

/// `whole` `[T, H, K]` from `own` `[T, H, own]` and `shared` `[T, n]` of `tokens` tokens.
pub fn join(own: &[f64], shared: &[f64], tokens: usize, heads: usize, size: usize) -> Vec<f64> {
    let (of_shared, of_own) = (shared.len() / tokens, own.len() / tokens / heads);
    let mut whole = vec![0.0; tokens * heads * size];
    for (i, head) in whole.chunks_exact_mut(size).enumerate() {
        head[..of_shared].copy_from_slice(&shared[i / heads * of_shared..][..of_shared]);
        head[of_shared..][..of_own].copy_from_slice(&own[i * of_own..][..of_own]);
    }
    whole
}

/// The gradients of `own` and `shared` in [`join`], of `own` and `shared` values each.
pub fn backward(dwhole: &[f64], tokens: usize, heads: usize, [own, shared]: [usize; 2]) -> [Vec<f64>; 2] {
    let size = dwhole.len() / tokens / heads;
    let mut dshared = vec![0.0; tokens * shared];
    let mut down = Vec::with_capacity(tokens * heads * own);
    for (i, head) in dwhole.chunks_exact(size).enumerate() {
        let sums = &mut dshared[i / heads * shared..][..shared];
        sums.iter_mut().zip(head).for_each(|(sum, d)| *sum += d);
        down.extend(&head[shared..shared + own]);
    }
    [down, dshared]
}
