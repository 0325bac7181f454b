//! All ops and the whole model as plain f64 loops: slow, obvious, and the ground truth for every kernel.
//!
//! All slices are row-major. An op's `forward` and `backward` are in the same file and take their arguments in the same order;
//! the gradient of `x` is called `dx`. Returned gradients are new; gradients behind `&mut` are added to. Constants of the model
//! (ε, softcap, window) are always arguments. Slices whose lengths do not match the shapes are a bug in the caller and panic.

// The formulas are written with indices.
#![allow(clippy::needless_range_loop)]

pub mod adamw;
pub mod attention;
pub mod cross_entropy;
pub mod delta;
pub mod distill;
pub mod embedding;
pub mod experts;
pub mod gated;
pub mod latent;
pub mod linear;
pub mod lora;
pub mod model;
pub mod rms_norm;
pub mod rope;
pub mod router;
pub mod short_conv;
pub mod verdict;

pub use router::Routing;

/// Row `n` of `x` `[N, width]`.
fn row(x: &[f64], n: usize, width: usize) -> &[f64] {
    &x[n * width..(n + 1) * width]
}

/// Mutable row `n` of `x` `[N, width]`.
fn row_mut(x: &mut [f64], n: usize, width: usize) -> &mut [f64] {
    &mut x[n * width..(n + 1) * width]
}

/// `Σ a_i·b_i`.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let mut sum = 0.0;
    for (a, b) in a.iter().zip(b) {
        sum += a * b;
    }
    sum
}

/// `y += scale·x`.
fn add_scaled(y: &mut [f64], scale: f64, x: &[f64]) {
    assert_eq!(y.len(), x.len());
    for (y, x) in y.iter_mut().zip(x) {
        *y += scale * x;
    }
}
