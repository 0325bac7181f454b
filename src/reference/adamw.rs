//! One optimizer step on one tensor, and gradient clipping over all tensors, as PyTorch defines them.

use super::dot;

/// AdamW with decoupled decay and bias correction; `step` counts from 1. `x`, `dx`, `m`, `v` `[N]`.
///
/// Loshchilov and Hutter 2017, arXiv:1711.05101; `torch.optim.AdamW` (ε is added after the root of the corrected
/// second moment, the decay takes the learning rate of the step).
pub fn adamw(
    x: &mut [f64],
    dx: &[f64],
    m: &mut [f64],
    v: &mut [f64],
    step: u64,
    learning_rate: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
) {
    let correction1 = 1.0 - beta1.powf(step as f64);
    let correction2 = 1.0 - beta2.powf(step as f64);
    for i in 0..x.len() {
        x[i] -= learning_rate * weight_decay * x[i];
        m[i] = beta1 * m[i] + (1.0 - beta1) * dx[i];
        v[i] = beta2 * v[i] + (1.0 - beta2) * dx[i] * dx[i];
        let root = (v[i] / correction2).sqrt() + eps;
        x[i] -= learning_rate * (m[i] / correction1) / root;
    }
}

/// Plain gradient descent, `x −= learning_rate·(dx + weight_decay·x)`: `torch.optim.SGD` without momentum.
pub fn sgd(x: &mut [f64], dx: &[f64], learning_rate: f64, weight_decay: f64) {
    for i in 0..x.len() {
        x[i] -= learning_rate * (dx[i] + weight_decay * x[i]);
    }
}

/// Scales all gradients so that their joint L2 norm is at most `max_norm`. Returns the norm before clipping.
///
/// `torch.nn.utils.clip_grad_norm_`: the factor is `min(1, max_norm/(norm + 1e-6))`.
pub fn clip(gradients: &mut [&mut [f64]], max_norm: f64) -> f64 {
    let mut squares = 0.0;
    for gradient in gradients.iter() {
        squares += dot(gradient, gradient);
    }
    let norm = squares.sqrt();
    let factor = (max_norm / (norm + 1e-6)).min(1.0);
    for gradient in gradients.iter_mut() {
        for i in 0..gradient.len() {
            gradient[i] *= factor;
        }
    }
    norm
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With bias correction the first step is `lr·g/(|g| + ε)` for any betas, after a decay of `lr·wd·x`.
    #[test]
    fn first_step_is_the_sign_of_the_gradient() {
        let (mut x, mut m, mut v) = ([2.0, 2.0], [0.0; 2], [0.0; 2]);
        adamw(&mut x, &[5.0, -0.5], &mut m, &mut v, 1, 0.1, 0.9, 0.999, 0.5, 0.01);
        let decayed = 2.0 - 0.1 * 0.01 * 2.0;
        assert!((x[0] - (decayed - 0.1 * 5.0 / 5.5)).abs() < 1e-13, "found {}", x[0]);
        assert!((x[1] - (decayed + 0.1 * 0.5 / 1.0)).abs() < 1e-13, "found {}", x[1]);
    }

    /// A constant gradient keeps both corrected moments at `g` and `g²`, so all steps have equal length.
    #[test]
    fn bias_correction_follows_the_step() {
        let (mut x, mut m, mut v) = ([0.0], [0.0], [0.0]);
        for step in 1..=5 {
            adamw(&mut x, &[3.0], &mut m, &mut v, step, 0.1, 0.9, 0.99, 0.0, 0.0);
        }
        assert!((x[0] + 0.5).abs() < 1e-12, "expected -0.5, found {}", x[0]);
    }

    #[test]
    fn sgd_follows_the_gradient_and_decays() {
        let mut x = [2.0];
        sgd(&mut x, &[3.0], 0.1, 0.5);
        assert!((x[0] - 1.6).abs() < 1e-15, "expected 2 - 0.1·(3 + 1), found {}", x[0]);
    }

    #[test]
    fn clip_scales_by_the_norm_of_all_tensors() {
        let (mut a, mut b) = ([3.0], [4.0, 0.0]);
        assert_eq!(clip(&mut [&mut a, &mut b], 10.0), 5.0);
        assert_eq!((a, b), ([3.0], [4.0, 0.0]));
        assert_eq!(clip(&mut [&mut a, &mut b], 1.0), 5.0);
        let factor = 1.0 / (5.0 + 1e-6);
        assert_eq!((a, b), ([3.0 * factor], [4.0 * factor, 0.0]));
    }
}
