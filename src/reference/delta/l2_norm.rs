//! The norm of queries and keys: `y = scale·x/√(Σx² + ε)`.

use crate::reference::{add_scaled, dot};

/// `x` `[N, width]` -> `[N, width]`.
pub fn forward(x: &[f64], width: usize, eps: f64, scale: f64) -> Vec<f64> {
    let norm = |x: &[f64]| {
        let r = scale / (dot(x, x) + eps).sqrt();
        x.iter().map(|x| x * r).collect::<Vec<_>>()
    };
    x.chunks_exact(width).flat_map(norm).collect()
}

/// `dx = scale·(r·dy − r³·x·⟨x, dy⟩)`, `r = 1/√(Σx² + ε)`: `dy`, `x` `[N, width]` -> `[N, width]`.
pub fn backward(dy: &[f64], x: &[f64], width: usize, eps: f64, scale: f64) -> Vec<f64> {
    let gradient = |(dy, x): (&[f64], &[f64])| {
        let r = 1.0 / (dot(x, x) + eps).sqrt();
        let mut dx: Vec<f64> = dy.iter().map(|dy| scale * r * dy).collect();
        add_scaled(&mut dx, -scale * r * r * r * dot(x, dy), x);
        dx
    };
    dy.chunks_exact(width).zip(x.chunks_exact(width)).flat_map(gradient).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divides_by_the_length() {
        // 9 + 16 with ε 11 is 36: the row is divided by 6.
        assert_eq!(forward(&[3.0, 4.0], 2, 11.0, 2.0), [1.0, 4.0 / 3.0]);
    }
}
