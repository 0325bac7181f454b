//! Products with an adapter's thin matrices and their gradients, of operands in tiles: on matrices of 16×16 and in CUDA.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{beside, level, part, plus, rows, scaled, values, wide};
use super::products::packed;
use super::tolerance::{EXACT, HALF};
use super::weight;
use crate::base::formats::GgmlType;
use crate::gpu::GpuError;
use crate::ops::linear::coop16::{self as linear, LowRank};
use crate::ops::lora::coop16_project::{Member, project, project_back};
use crate::ops::lora::cuda::{self, gradient as gradient_in_cuda};
use crate::ops::lora::{FEW, coop16};
use crate::ops::pack::Packed;
use crate::reference::linear as reference;

pub const CASES: [Case; 7] = [
    Case {
        op: "lora",
        name: "products and gradients",
        needs: Needs::Tiles,
        variants: super::COOP16,
        shapes: &Shapes { small: &[Shape { tokens: 67, rank: 16, n: 132 }], more: &[], check: of_selftest },
    },
    Case {
        op: "lora",
        name: "products and gradients in CUDA",
        needs: Needs::Cuda,
        variants: super::CUDA,
        shapes: &Shapes {
            // So many tokens that CUDA's kernels compute it.
            small: &[Shape { tokens: FEW + 6, rank: 16, n: 68 }],
            more: &[],
            check: of_selftest,
        },
    },
    Case {
        op: "lora",
        name: "products",
        needs: Needs::Tiles,
        variants: super::COOP16,
        shapes: &Shapes {
            small: &[],
            // Odd sizes, sums long enough for parts, and rows enough for several matrices in a workgroup.
            more: &[
                (1, 16, [32, 36]),
                (65, 16, [252, 1000]),
                (130, 48, [68, 64]),
                (300, 80, [516, 20]),
                (33, 16, [3200, 6200]),
                (20, 32, [4100, 260]),
                (2100, 16, [132, 68]),
                (4100, 16, [68, 100]),
                (4100, 48, [68, 36]),
            ],
            check: products,
        },
    },
    Case {
        op: "lora",
        name: "gradients apart",
        needs: Needs::Tiles,
        variants: super::COOP16,
        shapes: &Shapes {
            small: &[],
            more: &[
                Shape { tokens: 1, rank: 16, n: 32 },
                Shape { tokens: 65, rank: 16, n: 252 },
                Shape { tokens: 130, rank: 48, n: 68 },
                Shape { tokens: 300, rank: 80, n: 516 },
            ],
            check: gradients_apart,
        },
    },
    Case {
        op: "lora",
        name: "products with A",
        needs: Needs::Cuda,
        variants: super::CUDA,
        shapes: &Shapes { small: &[], more: &OF_CUDA, check: with_a_in_cuda },
    },
    Case {
        op: "lora",
        name: "products with B",
        needs: Needs::Cuda,
        variants: super::CUDA,
        shapes: &Shapes { small: &[], more: &OF_CUDA, check: with_b_in_cuda },
    },
    Case {
        op: "lora",
        name: "gradients in CUDA",
        needs: Needs::Cuda,
        variants: super::CUDA,
        shapes: &Shapes { small: &[], more: &OF_CUDA, check: gradients_in_cuda },
    },
];

#[derive(Clone, Copy, Debug)]
struct Shape {
    tokens: usize,
    rank: usize,
    /// `K` of `A` and `N` of `B`.
    n: usize,
}

/// The last ones have sums whose parts take several chunks of the thin operand.
const OF_CUDA: [Shape; 9] = [
    Shape { tokens: 1, rank: 16, n: 20 },
    Shape { tokens: 65, rank: 16, n: 252 },
    Shape { tokens: 130, rank: 48, n: 68 },
    Shape { tokens: 300, rank: 80, n: 516 },
    Shape { tokens: 33, rank: 32, n: 3200 },
    Shape { tokens: 1031, rank: 16, n: 1028 },
    Shape { tokens: 4100, rank: 16, n: 36 },
    Shape { tokens: 2100, rank: 32, n: 516 },
    Shape { tokens: 2100, rank: 48, n: 516 },
];

/// A wide operand, and the factors that make its rows alike.
pub struct Wide {
    pub values: Vec<f32>,
    pub width: usize,
    pub tiles: Packed,
    pub level: fn(usize) -> f64,
}

impl Wide {
    /// Rows from 2^-40 to 2^40.
    pub fn spread(b: &Bench, seed: u64, tokens: usize, width: usize) -> Result<Wide, GpuError> {
        let values = rows(seed, tokens, width, true);
        Ok(Wide { tiles: packed(b, &values, width)?, values, width, level })
    }

    /// Every other row has a scale of its own.
    fn sixfold(b: &Bench, seed: u64, tokens: usize, width: usize) -> Result<Wide, GpuError> {
        let of_row = |(i, x): (usize, &f32)| if (i / width).is_multiple_of(2) { *x } else { 6.0 * x };
        let values: Vec<f32> = values(seed, tokens * width).iter().enumerate().map(of_row).collect();
        Ok(Wide { tiles: packed(b, &values, width)?, values, width, level: |_| 1.0 })
    }

    /// Rows of similar size: a sum over rows is only as exact as the largest of them.
    pub fn alike(b: &Bench, seed: u64, tokens: usize, width: usize) -> Result<Wide, GpuError> {
        let values = values(seed, tokens * width);
        Ok(Wide { tiles: packed(b, &values, width)?, values, width, level: |_| 1.0 })
    }

    pub fn tokens(&self) -> usize {
        self.values.len() / self.width
    }
}

/// Notes `thin` `[T, rank]`, in tiles from a column on, as a product reads it beside `x`: `y = x·Wᵀ + thin·1ᵀ`.
pub fn expect_tiles(
    b: &mut Bench,
    name: String,
    x: &Wide,
    (tiles, z_offset): (&Packed, usize),
    thin: &[f64],
) -> Result<(), GpuError> {
    let (tokens, rank) = (x.tokens(), thin.len() / x.tokens());
    let (weight, w) = weight::random(b.gpu, GgmlType::F32, rank, x.width, false)?;
    let one: Vec<f32> = (0..rank * rank).map(|i| f32::from(u8::from(i / rank == i % rank))).collect();
    let (one, y) = (b.param(rank, &one)?, b.output(rank, tokens)?);
    b.run(|rec| {
        let term = LowRank { z: tiles, z_offset, matrix: &one, first_row: 0, rank, scale: 1.0 };
        linear::forward(rec, y.view(), &x.tiles, &weight, 1.0, Some(&term), tokens);
    })?;
    let expected = plus(&reference::forward(&wide(&x.values), &w, x.width), 1.0, thin);
    b.expect_leveled(format!("tiles of {name}"), &y, &expected, HALF, x.level);
    Ok(())
}

/// `z = x·Aᵀ`.
fn with_a(b: &mut Bench, x: &Wide, rank: usize, in_cuda: bool) -> Result<(), GpuError> {
    let (tokens, a) = (x.tokens(), values(2, rank * x.width));
    let expected = reference::forward(&wide(&x.values), &wide(&a), x.width);
    let (a, z) = (b.param(x.width, &a)?, b.output_within((16, 16), rank, tokens)?);
    let thin = Packed::new(b.gpu, "case", tokens, rank)?;
    b.run(|rec| match in_cuda {
        true => cuda::project(rec, z.view(), &x.tiles, &a, tokens, &thin),
        false => project(rec, z.view(), &x.tiles, &a, tokens, &thin),
    })?;
    let name = format!("z T={tokens} R={rank} K={}", x.width);
    b.expect_leveled(&name, &z, &expected, HALF, x.level);
    expect_tiles(b, name, x, (&thin, 0), &expected)
}

/// `u = 0.5·dy·B` of matrices side by side, in one pass or one after the other.
fn with_b(b: &mut Bench, dys: &[Wide], rank: usize, together: bool) -> Result<(), GpuError> {
    let (tokens, width) = (dys[0].tokens(), dys.len() * rank);
    let bs: Vec<Vec<f32>> = (3..).zip(dys).map(|(seed, dy)| values(seed, dy.width * rank)).collect();
    let each = dys
        .iter()
        .zip(&bs)
        .map(|(dy, b)| scaled(0.5, &reference::backward(&wide(&dy.values), &wide(b), rank)));
    let each: Vec<Vec<f64>> = each.collect();
    let row = |t: usize| each.iter().flat_map(move |u| &u[t * rank..][..rank]);
    let expected: Vec<f64> = (0..tokens).flat_map(row).copied().collect();
    let held = bs.iter().map(|values| b.param(rank, values)).collect::<Result<Vec<_>, _>>()?;
    let (u, thin) = (b.output_within((16, 16), width, tokens)?, Packed::new(b.gpu, "case", tokens, width)?);
    let members = dys.iter().zip(&held).enumerate();
    let members: Vec<Member> =
        members.map(|(i, (dy, b))| Member { dy: &dy.tiles, b, offset: i * rank }).collect();
    b.run(|rec| match together {
        true => project_back(rec, u.view(), &members, 0.5, tokens, &thin),
        false => members.iter().for_each(|one| project_back(rec, u.view(), &[*one], 0.5, tokens, &thin)),
    })?;
    let name = format!("u T={tokens} R={rank} of {} together={together}", dys.len());
    b.expect_leveled(&name, &u, &expected, HALF, dys[0].level);
    for (i, (dy, u)) in dys.iter().zip(&each).enumerate() {
        expect_tiles(b, format!("{name}, {i}"), dy, (&thin, i * rank), u)?;
    }
    Ok(())
}

/// Both products, the second of two matrices side by side: tokens, rank, widths.
fn products(b: &mut Bench, &(tokens, rank, widths): &(usize, usize, [usize; 2])) -> Result<(), GpuError> {
    let dys = [Wide::spread(b, 1, tokens, widths[0])?, Wide::spread(b, 2, tokens, widths[1])?];
    with_a(b, &dys[0], rank, false)?;
    with_b(b, &dys, rank, true)?;
    with_b(b, &dys, rank, false)
}

fn of_selftest(b: &mut Bench, &Shape { tokens, rank, n }: &Shape) -> Result<(), GpuError> {
    let x = Wide::sixfold(b, 1, tokens, n)?;
    with_a(b, &x, rank, false)?;
    with_b(b, std::slice::from_ref(&x), rank, true)?;
    apart(b, &x, rank)?;
    super::lora_pairs::together(b, &super::lora_pairs::Shape { tokens, k: n, members: &[(n, 16)] }, true)
}

fn gradients_apart(b: &mut Bench, &Shape { tokens, rank, n }: &Shape) -> Result<(), GpuError> {
    let x = Wide::alike(b, 5, tokens, n)?;
    apart(b, &x, rank)
}

/// The gradients of `A` and of `B`, each in a pass of its own.
fn apart(b: &mut Bench, x: &Wide, rank: usize) -> Result<(), GpuError> {
    let (tokens, n, name) = (x.tokens(), x.width, format!("T={} R={rank} N={}", x.tokens(), x.width));
    let (thin, before_a, before_b) = (values(6, tokens * rank), values(7, rank * n), values(8, n * rank));
    let product = reference::gradient(&wide(&thin), &wide(&x.values), rank, n);
    let transposed: Vec<f64> = (0..n * rank).map(|i| product[i % rank * n + i / rank]).collect();
    let thin = b.input_within((16, 4), rank, &thin)?;
    let (da, db) = (b.param(n, &before_a)?, b.param(rank, &before_b)?);
    b.run(|rec| {
        coop16::gradient_a(rec, &da, thin.view(), &x.tiles, tokens);
        coop16::gradient_b(rec, &db, &x.tiles, thin.view(), 0.5, tokens);
    })?;
    b.expect_param(format!("dA {name}"), &da, plus(&wide(&before_a), 1.0, &product), HALF);
    b.expect_param(format!("dB {name}"), &db, plus(&wide(&before_b), 0.5, &transposed), HALF);
    Ok(())
}

fn with_a_in_cuda(b: &mut Bench, &Shape { tokens, rank, n }: &Shape) -> Result<(), GpuError> {
    let x = Wide::spread(b, 1, tokens, n)?;
    with_a(b, &x, rank, true)
}

/// `u = 0.5·dy·B` of the second of two matrices side by side; nothing is written to the first one's columns.
fn with_b_in_cuda(b: &mut Bench, &Shape { tokens, rank, n }: &Shape) -> Result<(), GpuError> {
    const OTHERS: usize = 16;
    let (dy, up) = (Wide::spread(b, 1, tokens, n)?, values(2, n * rank));
    let expected = scaled(0.5, &reference::backward(&wide(&dy.values), &wide(&up), rank));
    let (before, width) = (values(3, tokens * (OTHERS + rank)), OTHERS + rank);
    let (u, up) = (b.in_out_within((16, 16), width, &before)?, b.param(rank, &up)?);
    let thin = Packed::new(b.gpu, "case", tokens, width)?;
    b.run(|rec| cuda::project_back(rec, u.view(), &dy.tiles, &up, OTHERS, 0.5, tokens, &thin))?;
    let name = format!("u T={tokens} R={rank} N={n}");
    let others = part(&wide(&before), width, 0, OTHERS);
    b.expect_columns(&format!("columns of another matrix, {name}"), &u, 0, OTHERS, others, EXACT);
    b.expect_columns_leveled(&name, &u, OTHERS, &expected, HALF, dy.level);
    expect_tiles(b, name, &dy, (&thin, OTHERS), &expected)
}

/// `dA += 0.5·uᵀ·x` and `dB += 0.5·dyᵀ·z`, whose thin operands lie among other columns.
fn gradients_in_cuda(b: &mut Bench, &Shape { tokens, rank, n }: &Shape) -> Result<(), GpuError> {
    let (x, mut thin) = (Wide::alike(b, 5, tokens, n)?, values(6, tokens * rank));
    // u is zero before the first step, as B is.
    if tokens == 65 {
        thin.fill(0.0);
    }
    // Kernels scale their sums of smaller values anew where larger ones follow.
    thin.iter_mut().enumerate().for_each(|(i, value)| *value *= f32::from(1 + (i / rank / 128 % 8) as u8));
    let product = reference::gradient(&wide(&thin), &wide(&x.values), rank, n);
    let transposed: Vec<f64> = (0..n * rank).map(|i| product[i % rank * n + i / rank]).collect();
    let all = beside(&values(9, tokens * 8), 8, &thin, rank);
    let (thin, before) = (b.input_within((16, 4), 8 + rank, &all)?, values(7, rank * n));
    let (da, db) = (b.param(n, &before)?, b.param(rank, &before)?);
    b.run(|rec| {
        let thin = thin.rows().from(16 + 8);
        gradient_in_cuda(rec, &da, thin, &x.tiles, [n, rank], 0.5, tokens, false);
        gradient_in_cuda(rec, &db, thin, &x.tiles, [n, rank], 0.5, tokens, true);
    })?;
    let name = format!("T={tokens} R={rank} K={n}");
    b.expect_param(format!("dA {name}"), &da, plus(&wide(&before), 0.5, &product), HALF);
    b.expect_param(format!("dB {name}"), &db, plus(&wide(&before), 0.5, &transposed), HALF);
    Ok(())
}
