//! Embedding lookup, and gathering the rows of the residual stream that the head needs.

use super::{add_scaled, row, row_mut};

/// `y[t] = scale·W[id_t]`: `ids` `[T]`, `weight` `[V, width]` -> `[T, width]`. The table is frozen: no backward.
pub fn forward(ids: &[u32], weight: &[f64], width: usize, scale: f64) -> Vec<f64> {
    let mut y = vec![0.0; ids.len() * width];
    for t in 0..ids.len() {
        add_scaled(row_mut(&mut y, t, width), scale, row(weight, ids[t] as usize, width));
    }
    y
}

/// `y[n] = x[rows_n]`: `x` `[T, width]`, `rows` `[N]` -> `[N, width]`.
pub fn gather(x: &[f64], rows: &[u32], width: usize) -> Vec<f64> {
    forward(rows, x, width, 1.0)
}

/// Backward of [`gather`]: `dx[rows_n] += dy[n]`, `dy` `[N, width]` -> `[tokens, width]`, zero in all other rows.
pub fn scatter(dy: &[f64], rows: &[u32], width: usize, tokens: usize) -> Vec<f64> {
    let mut dx = vec![0.0; tokens * width];
    for n in 0..rows.len() {
        add_scaled(row_mut(&mut dx, rows[n] as usize, width), 1.0, row(dy, n, width));
    }
    dx
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_picked_and_scaled() {
        let weight = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        // Rows 2 and 0 of [[1, 2], [3, 4], [5, 6]], times 10.
        assert_eq!(forward(&[2, 0], &weight, 2, 10.0), [50.0, 60.0, 10.0, 20.0]);
    }

    #[test]
    fn scatter_is_the_transpose_of_gather() {
        // Row 1 is picked twice, so it collects both gradients; row 0 is never picked.
        assert_eq!(scatter(&[1.0, 2.0, 10.0, 20.0], &[1, 1], 2, 3), [0.0, 0.0, 11.0, 22.0, 0.0, 0.0]);
    }
}
