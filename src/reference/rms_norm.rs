//! RMSNorm over rows: `y = w ⊙ x·r`, `r = 1/√(mean(x²) + ε)`. For a norm per head, a row is one head.

use super::{dot, row};

/// `x` `[N, width]`, `weight` `[width]` or `None` (= 1) -> `[N, width]`. The weight is used as stored, without adding 1.
pub fn forward(x: &[f64], weight: Option<&[f64]>, width: usize, eps: f64) -> Vec<f64> {
    let mut y = vec![0.0; x.len()];
    for n in 0..x.len() / width {
        let x = row(x, n, width);
        let r = 1.0 / (dot(x, x) / width as f64 + eps).sqrt();
        for i in 0..width {
            y[n * width + i] = weight.map_or(1.0, |w| w[i]) * x[i] * r;
        }
    }
    y
}

/// `dx = (w⊙dy)·r − x·r³·⟨w⊙dy, x⟩/width`: `dy`, `x` `[N, width]` -> `[N, width]`. The weight is frozen.
pub fn backward(dy: &[f64], x: &[f64], weight: Option<&[f64]>, width: usize, eps: f64) -> Vec<f64> {
    let mut dx = vec![0.0; x.len()];
    for n in 0..x.len() / width {
        let (dy, x) = (row(dy, n, width), row(x, n, width));
        let r = 1.0 / (dot(x, x) / width as f64 + eps).sqrt();
        let mut inner = 0.0;
        for i in 0..width {
            inner += weight.map_or(1.0, |w| w[i]) * dy[i] * x[i];
        }
        for i in 0..width {
            let direct = weight.map_or(1.0, |w| w[i]) * dy[i] * r;
            let through_r = x[i] * r * r * r * inner / width as f64;
            dx[n * width + i] = direct - through_r;
        }
    }
    dx
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divides_by_the_root_mean_square() {
        // mean(1, 49) = 25, plus ε = 39 is 64: the row is divided by 8. mean(4, 4) = 4, ε = 0: divided by 2.
        assert_eq!(forward(&[1.0, 7.0], None, 2, 39.0), [1.0 / 8.0, 7.0 / 8.0]);
        assert_eq!(forward(&[2.0, -2.0], Some(&[5.0, 10.0]), 2, 0.0), [5.0, -10.0]);
    }
}
