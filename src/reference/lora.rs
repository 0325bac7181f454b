//! The adapter's term of a product: `z = x̃·Aᵀ`, `y += scale·z·Bᵀ`, where `x̃` is `x` or, with dropout, `mask ⊙ x`.
//!
//! Hu et al. 2021, arXiv:2106.09685. As in PEFT, dropout is applied before `A`; its mask is inverted (0 or `1/(1 − p)`).

use super::{add_scaled, linear, row, row_mut};

/// Adds to `y` `[N, out]` and returns `z` `[N, R]`: `x` `[N, in]`, `a` `[R, in]`, `b` `[out, R]`, `mask` `[N, in]`.
pub fn forward(
    x: &[f64],
    a: &[f64],
    b: &[f64],
    rank: usize,
    scale: f64,
    mask: Option<&[f64]>,
    y: &mut [f64],
) -> Vec<f64> {
    let z = linear::forward(&masked(x, mask), a, a.len() / rank);
    add_scaled(y, scale, &linear::forward(&z, b, rank));
    z
}

/// `dB += scale·dyᵀz`, `u = scale·dy·B`, `dA += uᵀx̃`, `dx += mask ⊙ (u·A)`; shapes as in [`forward`].
pub fn backward(
    dy: &[f64],
    x: &[f64],
    a: &[f64],
    b: &[f64],
    rank: usize,
    scale: f64,
    mask: Option<&[f64]>,
    z: &[f64],
    dx: &mut [f64],
    da: &mut [f64],
    db: &mut [f64],
) {
    let (in_features, out_features) = (a.len() / rank, b.len() / rank);
    let x = masked(x, mask);
    let mut u = linear::backward(dy, b, rank);
    for i in 0..u.len() {
        u[i] *= scale;
    }
    for n in 0..z.len() / rank {
        for o in 0..out_features {
            let g = dy[n * out_features + o];
            add_scaled(row_mut(db, o, rank), scale * g, row(z, n, rank));
        }
        for r in 0..rank {
            add_scaled(row_mut(da, r, in_features), u[n * rank + r], row(&x, n, in_features));
        }
    }
    add_scaled(dx, 1.0, &masked(&linear::backward(&u, a, in_features), mask));
}

/// `mask ⊙ x`, or `x` without a mask.
fn masked(x: &[f64], mask: Option<&[f64]>) -> Vec<f64> {
    let mut y = x.to_vec();
    if let Some(mask) = mask {
        for i in 0..y.len() {
            y[i] *= mask[i];
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_the_scaled_low_rank_product() {
        // x = (1, 2), A = (3, 4): z = 11, or 1·3·2 + 2·4·0 = 6 with mask (2, 0). B = (1, 10)ᵀ, scale 0.5.
        let mut y = [100.0, 100.0];
        assert_eq!(forward(&[1.0, 2.0], &[3.0, 4.0], &[1.0, 10.0], 1, 0.5, None, &mut y), [11.0]);
        assert_eq!(y, [105.5, 155.0]);
        let mut y = [0.0, 0.0];
        let mask = [2.0, 0.0];
        assert_eq!(forward(&[1.0, 2.0], &[3.0, 4.0], &[1.0, 10.0], 1, 0.5, Some(&mask), &mut y), [6.0]);
        assert_eq!(y, [3.0, 30.0]);
    }
}
