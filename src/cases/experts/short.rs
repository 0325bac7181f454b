//! Products of short passes with the matrices of experts, without groups.

use super::super::bench::Bench;
use super::super::case::{Case, Needs, Shapes};
use super::super::inputs::{values, wide, widths};
use super::super::product::columns;
use super::super::tolerance::PRODUCT;
use super::{Grouped, experts, weight};
use crate::base::formats::GgmlType;
use crate::gpu::GpuError;
use crate::ops::linear::grouped::{LowRank, Source};
use crate::ops::matvec::grouped as matvec;
use crate::reference::linear as reference;

pub const CASES: [Case; 2] = [
    Case {
        op: "matvec",
        name: "experts of a few rows",
        needs: Needs::Any,
        variants: super::super::F32,
        shapes: &Shapes {
            small: &[([5, 2, 3], 36, 0, false)],
            more: &[],
            check: |b, shape| check(b, GgmlType::Q4_K, columns(GgmlType::Q4_K), *shape),
        },
    },
    Case {
        op: "matvec",
        name: "experts in short passes",
        needs: Needs::Any,
        variants: super::super::F32,
        shapes: &Shapes {
            small: &[],
            more: &[
                (0, ([4, 2, 1], 68, 0, false)),
                (2, ([8, 3, 8], 36, 4, true)),
                (1, ([128, 8, 3], 20, 16, false)),
            ],
            check: |b, &(width, shape)| {
                GgmlType::SUPPORTED.into_iter().try_for_each(|ty| check(b, ty, widths(ty)[width], shape))
            },
        },
    },
];

/// Experts, experts per token and tokens; N, rank, and whether the weights lie in tiles of two experts.
type Shape = ([usize; 3], usize, usize, bool);

/// For each choice, and summed over those of a token.
fn check(b: &mut Bench, ty: GgmlType, k: usize, shape: Shape) -> Result<(), GpuError> {
    let ([count, used, tokens], n, rank, tiled) = shape;
    let name = format!("{} K={k} {shape:?}", ty.name());
    let g = Grouped::new(b, experts(count, used), tokens)?;
    let (w, truth) = weight(b, ty, [count, n, k], tiled)?;
    let (x, by_choice) = (values(1, tokens * k), values(2, tokens * used * k));
    let (r, first_row, held_rows) = (rank.max(4), 4, n + 7);
    let (z, matrix) = (values(3, tokens * used * r), values(4, count * held_rows * r));
    let scales = values(5, count);
    let one = |choice: usize, x: &[f32]| {
        let e = g.routing.experts[choice];
        let mut y = reference::forward(&wide(x), &truth[e * n * k..][..n * k], k);
        if rank > 0 {
            let b = wide(&matrix[(e * held_rows + first_row) * r..][..n * r]);
            let term = reference::forward(&wide(&z[choice * r..][..r]), &b, r);
            y.iter_mut().zip(term).for_each(|(y, t)| *y += 0.75 * t);
        }
        y
    };
    let each: Vec<f64> = (0..tokens * used).flat_map(|c| one(c, &x[c / used * k..][..k])).collect();
    let mut summed = vec![0.0; tokens * n];
    for c in 0..tokens * used {
        let factor = g.routing.weights[c] * f64::from(scales[g.routing.experts[c]]);
        let y = one(c, &by_choice[c * k..][..k]);
        summed[c / used * n..][..n].iter_mut().zip(y).for_each(|(sum, y)| *sum += factor * y);
    }
    let (x, by_choice) = (b.input_within((4, 8), k, &x)?, b.input_within((8, 4), k, &by_choice)?);
    let (z, scales) = (b.input_within((0, 4), r, &z)?, b.input(count, &scales)?);
    let held = b.param(r, &matrix)?;
    let (y_each, y_summed) = (b.output_within((4, 4), n, tokens * used)?, b.output(n, tokens)?);
    b.run(|rec| {
        let term = LowRank { z: z.view(), matrix: &held, first_row, rank, scale: 0.75 };
        let term = (rank > 0).then_some(&term);
        matvec::each(rec, y_each.view(), Source::Tokens(x.view()), &w, term, &g.groups, tokens);
        let (y, x) = (y_summed.view(), by_choice.view());
        matvec::summed(rec, y, x, &w, term, scales.rows(), &g.groups, tokens);
    })?;
    b.expect(format!("{name}, each"), &y_each, each, PRODUCT);
    b.expect(format!("{name}, summed"), &y_summed, summed, PRODUCT);
    Ok(())
}
