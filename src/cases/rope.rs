//! Rotary embedding.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{values, wide};
use super::step::Step;
use super::tolerance::Tolerance;
use crate::gpu::GpuError;
use crate::ops::rope;
use crate::reference::rope as reference;

/// Two products and a sum, with cosines and sines that are rounded to f32.
const ROPE: Tolerance = Tolerance::new(2e-7, 0.0, 3e-7);

pub const CASES: [Case; 1] = [Case {
    op: "rope",
    name: "forward and backward",
    needs: Needs::Any,
    variants: super::F32,
    shapes: &Shapes {
        small: &[Shape { tokens: 67, heads: 3, size: 36, period: 50, turned: 18 }],
        more: &[
            Shape { tokens: 1, heads: 1, size: 4, period: 130, turned: 2 },
            Shape { tokens: 7, heads: 3, size: 100, period: 130, turned: 38 },
            Shape { tokens: 65, heads: 8, size: 32, period: 130, turned: 12 },
            Shape { tokens: 130, heads: 2, size: 512, period: 130, turned: 192 },
            Shape { tokens: 8_400, heads: 4, size: 128, period: 130, turned: 48 },
        ],
        check: both_ways,
    },
}];

struct Shape {
    tokens: usize,
    heads: usize,
    size: usize,
    /// Tokens of a packed sample: positions start again.
    period: usize,
    /// Pairs that are rotated; the others stay.
    turned: usize,
}

/// Both ways of a step's queries.
pub fn of_step(b: &mut Bench, step: &Step) -> Result<(), GpuError> {
    let &Step { tokens, heads, layers: [(size, _), _], .. } = step;
    both_ways(b, &Shape { tokens, heads, size, period: tokens, turned: size / 2 })
}

/// Pairs (i, i + K/2) rotated by position · frequency, and back; with weights behind and before the rotation.
fn both_ways(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let &Shape { tokens, heads, size, period, turned } = shape;
    let width = heads * size;
    let positions: Vec<u32> = (0..tokens).map(|t| (t % period) as u32).collect();
    let frequency = |i: usize| if i < turned { 1e4f64.powf(-2.0 * i as f64 / size as f64) } else { 0.0 };
    let frequencies: Vec<f64> = (0..size / 2).map(frequency).collect();
    let table = rope::Table::new(b.gpu, &frequencies, 1.0, period)?;
    let (x, weights) = (values(1, tokens * width), values(2, size));
    // Values behind the positions must not be used.
    let on_device = b.gpu.upload("case", &[&positions[..], &[7; 64]].concat())?;
    let norm = b.gpu.upload("case", &weights)?;
    let (forward, backward) = (b.in_out(width, &x)?, b.in_out(width, &x)?);
    let weighted = [b.in_out(width, &x)?, b.in_out(width, &x)?];
    b.run(|rec| {
        rope::forward(rec, forward.rows(), &on_device, &table, heads, tokens);
        rope::backward(rec, backward.rows(), &on_device, &table, heads, tokens);
    })?;
    b.untimed(|rec| {
        rope::forward_weighted(rec, weighted[0].rows(), &on_device, &table, &norm, heads, tokens);
        rope::backward_weighted(rec, weighted[1].rows(), &on_device, &table, &norm, heads, tokens);
    })?;
    if !b.compares() {
        return Ok(());
    }
    let weigh = |x: &[f64]| -> Vec<f64> {
        x.iter().zip(weights.iter().cycle()).map(|(x, w)| x * f64::from(*w)).collect()
    };
    let turned = reference::forward(&wide(&x), &positions, &frequencies, heads);
    let back = reference::backward(&wide(&x), &positions, &frequencies, heads);
    let back_weighted = reference::backward(&weigh(&wide(&x)), &positions, &frequencies, heads);
    let name = |what: &str| format!("{what}, T={tokens} heads={heads} K={size}");
    b.expect(name("weighted"), &weighted[0], weigh(&turned), ROPE);
    b.expect(name("weighted, back"), &weighted[1], back_weighted, ROPE);
    b.expect(name("turned"), &forward, turned, ROPE);
    b.expect(name("turned back"), &backward, back, ROPE);
    Ok(())
}
