//! The frozen product `y = x·Wᵀ`.

use super::{add_scaled, dot, row, row_mut};

/// `x` `[N, in]`, `w` `[out, in]` -> `[N, out]`.
pub fn forward(x: &[f64], w: &[f64], in_features: usize) -> Vec<f64> {
    let (rows, out_features) = (x.len() / in_features, w.len() / in_features);
    let mut y = vec![0.0; rows * out_features];
    for n in 0..rows {
        for o in 0..out_features {
            y[n * out_features + o] = dot(row(x, n, in_features), row(w, o, in_features));
        }
    }
    y
}

/// `dx = dy·W`: `dy` `[N, out]`, `w` `[out, in]` -> `[N, in]`.
pub fn backward(dy: &[f64], w: &[f64], in_features: usize) -> Vec<f64> {
    let out_features = w.len() / in_features;
    let rows = dy.len() / out_features;
    let mut dx = vec![0.0; rows * in_features];
    for n in 0..rows {
        for o in 0..out_features {
            let g = dy[n * out_features + o];
            add_scaled(row_mut(&mut dx, n, in_features), g, row(w, o, in_features));
        }
    }
    dx
}

/// `dW = dyᵀ·x`: `dy` `[T, N]`, `x` `[T, M]` -> `[N, M]`.
pub fn gradient(dy: &[f64], x: &[f64], n: usize, m: usize) -> Vec<f64> {
    let mut product = vec![0.0; n * m];
    for (dy, x) in dy.chunks(n).zip(x.chunks(m)) {
        for (row, dy) in product.chunks_mut(m).zip(dy) {
            row.iter_mut().zip(x).for_each(|(sum, x)| *sum += dy * x);
        }
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_w_are_outputs() {
        // W = [[1, 2], [3, 4], [5, 6]], x = (1, 10): 1 + 20, 3 + 40, 5 + 60.
        let w = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        assert_eq!(forward(&[1.0, 10.0], &w, 2), [21.0, 43.0, 65.0]);
        // dy = (1, 10, 100): columns 1 + 30 + 500 and 2 + 40 + 600.
        assert_eq!(backward(&[1.0, 10.0, 100.0], &w, 2), [531.0, 642.0]);
    }
}
