//! Rotary position embedding in NeoX order: element `i` of a head is rotated together with element `i + n/2`, where the first `n` of the
//! head's `K` elements are rotated.
//!
//! Su et al. 2021, arXiv:2104.09864; the frequencies are `Config::rope_frequencies`.

/// `x` `[T, heads, K]`, `positions` `[T]`, `frequencies` `[n/2]` -> `[T, heads, K]`: each pair is rotated by
/// `position·frequency`.
pub fn forward(x: &[f64], positions: &[u32], frequencies: &[f64], heads: usize) -> Vec<f64> {
    rotate(x, positions, frequencies, heads, 1.0)
}

/// The rotation by the negative angle: `dy` `[T, heads, K]` -> `[T, heads, K]`.
pub fn backward(dy: &[f64], positions: &[u32], frequencies: &[f64], heads: usize) -> Vec<f64> {
    rotate(dy, positions, frequencies, heads, -1.0)
}

fn rotate(x: &[f64], positions: &[u32], frequencies: &[f64], heads: usize, sign: f64) -> Vec<f64> {
    let half = frequencies.len();
    let size = x.len() / (positions.len() * heads);
    let mut y = x.to_vec();
    for t in 0..positions.len() {
        for h in 0..heads {
            let head = (t * heads + h) * size;
            for i in 0..half {
                let (sin, cos) = (sign * f64::from(positions[t]) * frequencies[i]).sin_cos();
                let (x1, x2) = (x[head + i], x[head + half + i]);
                y[head + i] = x1 * cos - x2 * sin;
                y[head + half + i] = x1 * sin + x2 * cos;
            }
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::FRAC_PI_2;

    #[test]
    fn the_rest_of_a_head_stays() {
        let y = forward(&[1.0, 2.0, 3.0, 4.0], &[1], &[FRAC_PI_2], 1);
        assert!((y[0] + 2.0).abs() < 1e-15 && (y[1] - 1.0).abs() < 1e-15, "{y:?}");
        assert_eq!(y[2..], [3.0, 4.0]);
    }

    #[test]
    fn pairs_are_half_a_head_apart() {
        // Two tokens, one head of size 4; pair 0 rotates by a quarter turn per position, pair 1 does not rotate.
        let y = forward(&[1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0], &[0, 1], &[FRAC_PI_2, 0.0], 1);
        let expected = [1.0, 2.0, 3.0, 4.0, -3.0, 2.0, 1.0, 4.0];
        for i in 0..8 {
            assert!(
                (y[i] - expected[i]).abs() < 1e-15,
                "element {i}: expected {}, found {}",
                expected[i],
                y[i]
            );
        }
    }
}
