//! Backward of the norm and the gates behind a delta net's recurrence.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{values, wide};
use super::rms_norm::{EPS, norm};
use super::tolerance::Tolerance;
use crate::base::config::Activation;
use crate::gpu::GpuError;
use crate::ops::delta::{self, Delta, Frozen};
use crate::reference::{gated, rms_norm};

/// An exponential, a quotient and two products, and those of a norm.
const NORMED: Tolerance = Tolerance::new(2e-6, 2e-6, 1e-5);

pub const CASES: [Case; 1] = [Case {
    op: "delta",
    name: "backward of the norm and the gates",
    needs: Needs::Any,
    variants: super::F32,
    shapes: &Shapes {
        small: &[(9, 3, 100, 1.0)],
        more: &[(1, 1, 4, 120.0), (7, 3, 20, 120.0), (3, 6, 100, 120.0), (65, 2, 128, 120.0)],
        check: backward,
    },
}];

/// Tokens, heads, their size, and the size of the gates: the largest are those whose exponential overflows.
type Shape = (usize, usize, usize, f32);

fn backward(b: &mut Bench, &(tokens, value_heads, head_size, gates): &Shape) -> Result<(), GpuError> {
    let width = value_heads * head_size;
    let [x, dy] = [1, 2].map(|seed| values(seed, tokens * width));
    let gate: Vec<f32> = values(3, tokens * width).iter().map(|x| gates * x * x * x).collect();
    let weight = values(4, head_size);
    let frozen = Frozen::new(b.gpu, &[0.0; 4], &[0.0], &[0.0])?;
    let bounds = &b.gpu.upload("case", &[[0u32; 2]])?;
    let shape = Delta { key_heads: 1, value_heads, head_size, eps: EPS, frozen: &frozen, bounds, tokens };
    let norm = norm(b, &weight)?;
    let (x_block, dy_block, gate_block) = (b.input(width, &x)?, b.input(width, &dy)?, b.input(width, &gate)?);
    let (dgate, dx) = (b.output(width, tokens)?, b.output(width, tokens)?);
    let (gradients, inputs) = ([dgate.rows(), dx.rows()], [gate_block.rows(), x_block.rows()]);
    b.run(|rec| delta::norm::backward(rec, &shape, &norm, gradients, dy_block.rows(), inputs))?;
    let (x, weight, eps) = (wide(&x), wide(&weight), f64::from(EPS));
    let normed = rms_norm::forward(&x, Some(&weight), head_size, eps);
    let (dgate_expected, dnormed) = gated::backward(&wide(&dy), &wide(&gate), &normed, Activation::Silu);
    let dx_expected = rms_norm::backward(&dnormed, &x, Some(&weight), head_size, eps);
    let name = format!("T={tokens} Hv={value_heads} K={head_size}");
    b.expect(format!("dgate {name}"), &dgate, dgate_expected, NORMED);
    b.expect(format!("dx {name}"), &dx, dx_expected, NORMED);
    Ok(())
}
