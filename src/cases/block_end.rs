//! The end of a block in decoding: the residual stream, and the next norm.

use super::adapter::Adapter;
use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{plus, scaled, values, wide};
use super::rms_norm::{EPS, norm};
use super::tolerance::SUMS;
use crate::gpu::GpuError;
use crate::ops::Unfinished;
use crate::ops::block_end::{self, End, Next};
use crate::ops::rms_norm::Norm;
use crate::reference::rms_norm;

pub const CASES: [Case; 1] = [Case {
    op: "block_end",
    name: "stream and next norm",
    needs: Needs::Any,
    variants: super::F32,
    shapes: &Shapes {
        small: &[shape(252, 3, 8).scaled(1.25), shape(1028, 1, 8).scaled(1.25)],
        // Widths below, at and above a workgroup's threads.
        more: &[
            shape(4, 1, 0),
            shape(252, 3, 4).scaled(0.5),
            Shape { with_next: false, ..shape(1024, 1, 12) },
            // The next norm may have an ε of its own.
            Shape { next_eps: 0.25, ..shape(1536, 2, 16).scaled(1.25) },
            shape(2564, 9, 0),
            shape(2560, 1, 32),
            shape(5376, 2, 8),
            Shape { is_normed: false, ..shape(252, 3, 4).scaled(0.5) },
            Shape { is_normed: false, ..shape(2560, 1, 32) },
        ],
        check,
    },
}];

#[derive(Clone, Copy, Debug)]
struct Shape {
    width: usize,
    rows: usize,
    rank: usize,
    scale: f32,
    with_next: bool,
    next_eps: f32,
    is_normed: bool,
}

const fn shape(width: usize, rows: usize, rank: usize) -> Shape {
    Shape { width, rows, rank, scale: 1.0, with_next: true, next_eps: EPS, is_normed: true }
}

impl Shape {
    const fn scaled(self, scale: f32) -> Shape {
        Shape { scale, ..self }
    }
}

fn check(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let &Shape { width, rows, rank, scale, with_next, next_eps, is_normed } = shape;
    let (y, stream) = (values(1, rows * width), values(2, rows * width));
    let (weight, next_weight) = (values(3, width), values(4, width));
    let adapter = Adapter::new(b, rank, &[width], rows)?;
    let normed = |x: &[f64], w: &[f32], eps: f32| rms_norm::forward(x, Some(&wide(w)), width, f64::from(eps));
    let product = adapter.added(&wide(&y), 0);
    let term = if is_normed { normed(&product, &weight, EPS) } else { product };
    let sum = scaled(scale, &plus(&wide(&stream), 1.0, &term));
    let next_expected = normed(&sum, &next_weight, next_eps);

    let y = b.input(width + rank, &adapter.beside(&y, width))?;
    let (stream, next) = (b.in_out(width, &stream)?, b.output(width, rows)?);
    let first = if is_normed { norm(b, &weight)? } else { Norm::identity(width) };
    let second = Norm { eps: next_eps, ..norm(b, &next_weight)? };
    b.run(|rec| {
        let y = Unfinished::of(y.rows(), adapter.up(width));
        let then = with_next.then_some(Next { norm: &second, integers: None });
        let end = End { scale, next: then, ..End::of(&first) };
        block_end::forward(rec, stream.rows(), next.rows(), &y, end, rows);
    })?;
    b.expect(format!("stream, {shape:?}"), &stream, sum, SUMS);
    match with_next {
        true => b.expect(format!("next norm, {shape:?}"), &next, next_expected, SUMS),
        false => b.expect_only_rows(format!("no next norm, {shape:?}"), &next, |_| false, Vec::new(), SUMS),
    }
    Ok(())
}
