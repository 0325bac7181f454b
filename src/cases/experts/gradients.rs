//! Gradients of the adapters of experts.

use half::f16;

use super::super::bench::Bench;
use super::super::case::{Case, Needs, Shapes};
use super::super::inputs::{values, wide};
use super::super::tolerance::{PRODUCT, Tolerance};
use super::{Grouped, OF_SELFTEST, experts, source};
use crate::gpu::GpuError;
use crate::ops::lora::grouped as lora;
use crate::ops::pack::Packed;

pub const CASES: [Case; 2] = [
    Case {
        op: "lora",
        name: "gradients of experts",
        needs: Needs::Any,
        variants: super::super::PRODUCTS,
        shapes: &Shapes { small: &[shape(OF_SELFTEST, [68, 16])], more: &[], check },
    },
    Case {
        op: "lora",
        name: "gradients of experts, of rows by token or by expert",
        needs: Needs::Any,
        variants: super::super::ROWS_AND_TILES,
        shapes: &Shapes {
            small: &[],
            more: &[
                shape([4, 2, 1], [4, 4]).and_packed(),
                shape([5, 2, 90], [68, 16]).by_token([true, false]).weighted(),
                shape([3, 1, 150], [16, 132]).by_token([false, true]).and_packed(),
                shape([7, 3, 70], [20, 64]).weighted().and_packed(),
                shape([128, 8, 60], [32, 4]).by_token([true, true]).weighted(),
            ],
            check,
        },
    },
];

#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Experts, experts per token and tokens.
    experts: [usize; 3],
    /// `N` and `M`.
    sizes: [usize; 2],
    /// Whether P and Q are ordered by token.
    by_token: [bool; 2],
    /// Whether rows are weighted.
    weighted: bool,
    /// Whether it is repeated with rows in f16.
    packed: bool,
}

const fn shape(experts: [usize; 3], sizes: [usize; 2]) -> Shape {
    Shape { experts, sizes, by_token: [false; 2], weighted: false, packed: false }
}

impl Shape {
    const fn by_token(self, by_token: [bool; 2]) -> Shape {
        Shape { by_token, ..self }
    }

    const fn weighted(self) -> Shape {
        Shape { weighted: true, ..self }
    }

    const fn and_packed(self) -> Shape {
        Shape { packed: true, ..self }
    }

    /// `before + 0.75·Σ factor·pᵀ·q` over the rows of each expert.
    fn expected(&self, g: &Grouped, [before, p, q]: [&[f32]; 3], scales: Option<&[f32]>) -> Vec<f64> {
        let (Shape { sizes: [n, m], by_token, .. }, used) = (*self, self.experts[1]);
        let mut dw = wide(before);
        for (row, choice) in g.choices() {
            let e = g.routing.experts[choice];
            let at = |x: &[f32], width: usize, by_token: bool| {
                let from = if by_token { choice / used } else { row };
                wide(&x[from * width..][..width])
            };
            let factor = scales.map_or(1.0, |scales| g.routing.weights[choice] * f64::from(scales[e]));
            let (p, q) = (at(p, n, by_token[0]), at(q, m, by_token[1]));
            for (i, p) in p.iter().enumerate() {
                for (j, q) in q.iter().enumerate() {
                    dw[(e * n + i) * m + j] += f64::from(SCALE) * factor * p * q;
                }
            }
        }
        dw
    }
}

const SCALE: f32 = 0.75;

/// `dW_e += 0.75·Σ factor·pᵀ·q` over the rows of each expert; padding rows hold NaN.
fn check(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let &Shape { experts: [count, used, tokens], sizes: [n, m], by_token, weighted, packed } = shape;
    let g = Grouped::new(b, experts(count, used), tokens)?;
    let (scales, before) = (values(5, count), values(6, count * n * m));
    let make = |seed: u64, width: usize, by_token: bool| match by_token {
        true => values(seed, tokens * width),
        false => g.among_nan(seed, width),
    };
    let (p, q) = (make(7, n, by_token[0]), make(8, m, by_token[1]));
    let (p_block, q_block) = (b.input_within((4, 8), n, &p)?, b.input_within((0, 4), m, &q)?);
    let (scale_rows, dw) = (b.input(count, &scales)?, b.param(m, &before)?);
    b.run(|rec| {
        let (p, q) = (source(&p_block, by_token[0]), source(&q_block, by_token[1]));
        let scales = weighted.then(|| scale_rows.rows());
        lora::gradient(rec, &dw, p, q, None, SCALE, scales, &g.groups, tokens);
    })?;
    let tolerance = Tolerance { device: b.operands().device, ..PRODUCT };
    let expected = shape.expected(&g, [&before, &p, &q], weighted.then_some(&scales[..]));
    b.expect_param(format!("dW {shape:?}"), &dw, expected, tolerance);
    if !packed {
        return Ok(());
    }
    let (tiles, rounded) = in_f16(b, &p, n)?;
    let dw = b.param(m, &before)?;
    b.run(|rec| {
        let q = source(&q_block, by_token[1]);
        lora::gradient_packed(rec, &dw, &tiles, q, SCALE, &g.groups, tokens);
    })?;
    let expected = shape.expected(&g, [&before, &rounded, &q], None);
    b.expect_param(format!("dW {shape:?}, packed"), &dw, expected, tolerance);
    Ok(())
}

/// Rows in f16, packed here as a kernel packs them, each with its own factor, and their values.
fn in_f16(b: &Bench, p: &[f32], n: usize) -> Result<(Packed, Vec<f32>), GpuError> {
    let (rows, tiles) = (p.len() / n, p.len() / n / 16);
    let mut halves = vec![f16::NAN; tiles * 16 * n.next_multiple_of(16)];
    let mut rounded = p.to_vec();
    for (row, values) in rounded.chunks_mut(n).enumerate() {
        for (c, value) in values.iter_mut().enumerate() {
            let half = f16::from_f32(*value);
            halves[((c / 16 * tiles + row / 16) * 16 + row % 16) * 16 + c % 16] = half;
            *value = half.to_f32() * (1 + row % 3) as f32;
        }
    }
    let factors: Vec<f32> = (0..rows).map(|row| (1 + row % 3) as f32).collect();
    let packed = Packed::new(b.gpu, "case", rows, n)?;
    b.gpu.write(packed.bind(0).buffer, &halves);
    b.gpu.write(packed.bind_factors(0).buffer, &factors);
    Ok((packed, rounded))
}
