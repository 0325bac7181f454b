//! Compares every backward of the f64 reference, and the whole model, with central finite differences of its forward.
//!
//! With a step of 1e-5 the differences themselves are accurate to about 1e-9 (truncation h²·f‴/6 = 1e-11 times the third
//! derivative, rounding ε·|f|/h = 1e-11·|f|); 1e-6 leaves a margin and is far below any missing term.

mod delta;
mod distill;
#[path = "../common/golden.rs"]
mod golden;
mod model;
mod ops;
mod pytorch;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const STEP: f64 = 1e-5;
const RELATIVE: f64 = 1e-6;
/// Absolute tolerance of one element, relative to the tensor's largest.
const FLOOR: f64 = 1e-8;

/// Uniform in [-1, 1), determined by the seed.
fn values(seed: u64, len: usize) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| 2.0 * rng.random::<f64>() - 1.0).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm(x: &[f64]) -> f64 {
    dot(x, x).sqrt()
}

/// Compares `gradient` with finite differences of `f` around `x`, element by element and as a whole.
fn assert_gradient(name: &str, gradient: &[f64], x: &[f64], f: impl Fn(&[f64]) -> f64) {
    let mut expected = vec![0.0; x.len()];
    for i in 0..x.len() {
        let mut moved = x.to_vec();
        moved[i] = x[i] + STEP;
        let above = f(&moved);
        moved[i] = x[i] - STEP;
        expected[i] = (above - f(&moved)) / (2.0 * STEP);
    }
    assert_close(name, gradient, &expected, RELATIVE);
    assert!(norm(&expected) > 1e-3, "{name}: the gradient vanishes, nothing was tested");
}

fn assert_close(name: &str, found: &[f64], expected: &[f64], relative: f64) {
    assert_eq!(found.len(), expected.len(), "{name}: length");
    let difference: Vec<f64> = found.iter().zip(expected).map(|(a, b)| a - b).collect();
    let error = norm(&difference) / norm(expected).max(1e-300);
    let largest = expected.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
    for i in 0..found.len() {
        let tolerance = relative * expected[i].abs() + FLOOR * largest;
        assert!(
            difference[i].abs() <= tolerance,
            "{name}: element {i} of {}: expected {:e}, found {:e} (whole tensor: relative error {error:.1e})",
            found.len(),
            expected[i],
            found[i]
        );
    }
    assert!(error <= relative, "{name}: relative error {error:.1e}");
}

/// The amount that a backward added to a buffer.
fn added(after: &[f64], before: &[f64]) -> Vec<f64> {
    after.iter().zip(before).map(|(after, before)| after - before).collect()
}
