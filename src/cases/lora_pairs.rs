//! Gradients of an adapter's `A` and of up to three `B` together, alone or beside a product, on matrices of 16×16.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{part, plus, values, wide, widths};
use super::products::packed;
use super::tolerance::HALF;
use super::weight;
use crate::base::formats::GgmlType;
use crate::gpu::{GpuError, Recorder};
use crate::ops::linear::coop16 as linear;
use crate::ops::lora::FEW;
use crate::ops::lora::coop16_gradients::{Beside, Gradient, gradients};
use crate::reference::linear as reference;

pub const CASES: [Case; 2] = [
    Case {
        op: "lora",
        name: "gradients together",
        needs: Needs::Tiles,
        variants: super::COOP16,
        shapes: &Shapes { small: &[], more: &SHAPES, check: with_and_without_a },
    },
    Case {
        op: "lora",
        name: "gradients beside a product",
        needs: Needs::Tiles,
        variants: super::COOP16,
        shapes: &Shapes { small: &[], more: &SHAPES, check: beside_products },
    },
];

#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    pub tokens: usize,
    pub k: usize,
    /// `N` and rank of each `B`.
    pub members: &'a [(usize, usize)],
}

/// Over few and over more rows.
const SHAPES: [Shape<'static>; 8] = [
    Shape { tokens: 1, k: 64, members: &[(32, 16)] },
    Shape { tokens: 300, k: 132, members: &[(516, 80)] },
    Shape { tokens: 1, k: 36, members: &[(68, 16), (20, 32)] },
    Shape { tokens: 65, k: 68, members: &[(252, 16), (68, 48)] },
    Shape { tokens: 130, k: 260, members: &[(132, 32), (36, 16), (516, 80)] },
    Shape { tokens: 600, k: 200, members: &[(68, 48), (200, 16), (64, 16)] },
    Shape { tokens: FEW, k: 20, members: &[(36, 16), (132, 16), (4, 32)] },
    Shape { tokens: FEW + 1, k: 20, members: &[(36, 32), (132, 16), (68, 48)] },
];

fn with_and_without_a(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    together(b, shape, true)?;
    together(b, shape, false)
}

/// The gradients of every `B` and, with `A`, its gradient.
pub fn together(b: &mut Bench, shape: &Shape, with_a: bool) -> Result<(), GpuError> {
    check(b, shape, with_a, |rec, b, a| gradients(rec, b, a, 0.5, shape.tokens))
}

/// These gradients behind the workgroups of a product, whose result they leave as it is, bit for bit.
fn beside_products(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let (t, n) = (shape.tokens, 131);
    if t > FEW {
        return Ok(());
    }
    for (ty, with_a) in
        [GgmlType::F32, GgmlType::Q4_K, GgmlType::Q6_K].into_iter().flat_map(|ty| [(ty, true), (ty, false)])
    {
        let k = widths(ty)[2];
        let (weight, _) = weight::random(b.gpu, ty, n, k, true)?;
        let dy = packed(b, &values(1, t * n), n)?;
        let (alone, with) = (b.output_within((8, 4), k, t)?, b.output_within((8, 4), k, t)?);
        b.run(|rec| linear::backward(rec, alone.view(), &dy, &weight, 1.0, None, t, false))?;
        check(b, shape, with_a, |rec, b, a| {
            let product = linear::Product::new(with.view(), &dy, &weight, t);
            linear::backward_onto(rec, &product, None, Some(Beside::new(b, a, 0.5, t)));
        })?;
        b.expect_same(format!("{shape:?}, {ty:?}: the product alone"), &with, &alone);
    }
    Ok(())
}

fn check(
    b: &mut Bench,
    shape: &Shape,
    with_a: bool,
    go: impl Fn(&mut Recorder, &[Gradient], Option<Gradient>),
) -> Result<(), GpuError> {
    let &Shape { tokens: t, k, members } = shape;
    let ranks = members.iter().map(|(_, rank)| rank).sum();
    // Rows of similar size: the sum over rows is only as exact as the largest of them.
    let (x, u, z) = (values(1, t * k), values(2, t * ranks), values(3, t * ranks));
    let before_a = values(4, ranks * k);
    let (wide_x, z_rows) = (packed(b, &x, k)?, b.input_within((16, 4), ranks, &z)?);
    let (u_rows, da) = (b.input_within((4, 8), ranks, &u)?, b.param(k, &before_a)?);
    let (mut wide_dys, mut dbs, mut expected, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut offset = 0;
    for (seed, &(n, rank)) in (5..).step_by(2).zip(members) {
        let (dy, before) = (values(seed, t * n), values(seed + 1, n * rank));
        let own = part(&wide(&z), ranks, offset, rank);
        expected.push(plus(&wide(&before), 0.5, &reference::gradient(&wide(&dy), &own, n, rank)));
        wide_dys.push(packed(b, &dy, n)?);
        dbs.push(b.param(rank, &before)?);
        offsets.push(16 + offset);
        offset += rank;
    }
    b.run(|rec| {
        let of_b = dbs.iter().zip(&wide_dys).zip(&offsets);
        let of_b: Vec<Gradient> = of_b
            .map(|((matrix, wide), &at)| Gradient { matrix, wide, thin: z_rows.rows().from(at) })
            .collect();
        let of_a = Gradient { matrix: &da, wide: &wide_x, thin: u_rows.view() };
        go(rec, &of_b, with_a.then_some(of_a));
    })?;
    let name = format!("{shape:?} with A={with_a}");
    for (i, (db, expected)) in dbs.iter().zip(expected).enumerate() {
        b.expect_param(format!("dB {i}, {name}"), db, expected, HALF);
    }
    let of_a = match with_a {
        true => reference::gradient(&wide(&u), &wide(&x), ranks, k),
        false => vec![0.0; ranks * k],
    };
    b.expect_param(format!("dA, {name}"), &da, plus(&wide(&before_a), 1.0, &of_a), HALF);
    Ok(())
}
