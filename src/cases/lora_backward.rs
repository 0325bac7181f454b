//! Products of gradients with an adapter's `B`, and the gradients of `B`, from one read of the gradients, in CUDA.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{beside, part, plus, scaled, values, wide};
use super::lora_tiles::{Wide, expect_tiles};
use super::tolerance::{EXACT, HALF};
use crate::gpu::GpuError;
use crate::ops::lora::backward::{Product, Way, backward_by};
use crate::ops::lora::coop16_gradients::Gradient;
use crate::ops::lora::coop16_project::Member;
use crate::ops::pack::Packed;
use crate::reference::linear as reference;

pub const CASES: [Case; 1] = [Case {
    op: "lora",
    name: "u and gradients from one read",
    needs: Needs::Cuda,
    variants: super::CUDA,
    shapes: &Shapes {
        small: &[Shape { tokens: 70, rank: 16, outputs: &[68, 36] }],
        // Odd sizes, products narrower than the columns of a warp, and parts of several chunks.
        more: &[
            Shape { tokens: 1, rank: 16, outputs: &[20] },
            Shape { tokens: 65, rank: 16, outputs: &[252, 68, 4] },
            Shape { tokens: 300, rank: 32, outputs: &[516, 36] },
            Shape { tokens: 33, rank: 32, outputs: &[3200] },
            Shape { tokens: 1031, rank: 16, outputs: &[1028, 516, 20] },
            Shape { tokens: 4400, rank: 16, outputs: &[36] },
        ],
        check: ways,
    },
}];

#[derive(Clone, Copy, Debug)]
struct Shape {
    tokens: usize,
    rank: usize,
    /// `N` of each product.
    outputs: &'static [usize],
}

/// Columns of `u` of another product.
const OTHERS: usize = 16;

/// In one launch, and in several; of rank 16 with strips of either width.
fn ways(b: &mut Bench, &Shape { tokens, rank, outputs }: &Shape) -> Result<(), GpuError> {
    for way in [Way { most_rows: 1 << 20, is_wide: false }, Way { most_rows: 64, is_wide: rank == 16 }] {
        for is_alike in [true, false] {
            let make = if is_alike { Wide::alike } else { Wide::spread };
            let dys = (1..).zip(outputs).map(|(seed, width)| make(b, seed, tokens, *width));
            let dys = dys.collect::<Result<Vec<_>, _>>()?;
            // The sum over rows is only as exact as the largest of them.
            check(b, &dys, rank, way, is_alike)?;
        }
    }
    Ok(())
}

/// `u = 0.5·dy·B` and, where `with_gradients`, `dB += 0.5·dyᵀ·z`.
fn check(b: &mut Bench, dys: &[Wide], rank: usize, way: Way, with_gradients: bool) -> Result<(), GpuError> {
    let (tokens, width) = (dys[0].tokens(), dys.len() * rank);
    let all = |seed: u64| (seed..).zip(dys).map(|(seed, dy)| values(seed, dy.width * rank)).collect();
    let [ups, before]: [Vec<Vec<f32>>; 2] = [11, 21].map(all);
    let [held, grads] = [&ups, &before]
        .map(|all| all.iter().map(|values| b.param(rank, values)).collect::<Result<Vec<_>, _>>());
    let (held, grads, z, others) = (held?, grads?, z(tokens, width), values(3, tokens * (OTHERS + width)));
    let z_rows = b.input_within((16, 4), 8 + width, &beside(&values(9, tokens * 8), 8, &z, width))?;
    let u = b.in_out_within((16, 16), OTHERS + width, &others)?;
    let thin = Packed::new(b.gpu, "case", tokens, OTHERS + width)?;
    let product = |i: usize| Product {
        member: Member { dy: &dys[i].tiles, b: &held[i], offset: OTHERS + i * rank },
        gradient: Gradient {
            matrix: &grads[i],
            wide: &dys[i].tiles,
            thin: z_rows.rows().from(16 + 8 + i * rank),
        },
    };
    let products: Vec<Product> = (0..dys.len()).map(product).collect();
    b.run(|rec| backward_by(rec, u.view(), &products, 0.5, tokens, &thin, way))?;
    let name = format!("T={tokens} R={rank}, {way:?}");
    b.expect_columns(&name, &u, 0, OTHERS, part(&wide(&others), OTHERS + width, 0, OTHERS), EXACT);
    let of_product =
        |(dy, up): (&Wide, &Vec<f32>)| scaled(0.5, &reference::backward(&wide(&dy.values), &wide(up), rank));
    let each: Vec<Vec<f64>> = dys.iter().zip(&ups).map(of_product).collect();
    let row = |t: usize| each.iter().flat_map(move |u| &u[t * rank..][..rank]);
    let expected: Vec<f64> = (0..tokens).flat_map(row).copied().collect();
    b.expect_columns_leveled(&format!("u {name}"), &u, OTHERS, &expected, HALF, dys[0].level);
    for (i, dy) in dys.iter().enumerate() {
        let name = format!("N={} {name}", dy.width);
        expect_tiles(b, format!("u {name}"), dy, (&thin, OTHERS + i * rank), &each[i])?;
        if with_gradients {
            let own = part(&wide(&z), width, i * rank, rank);
            let product = reference::gradient(&wide(&dy.values), &own, dy.width, rank);
            b.expect_param(format!("dB {name}"), &grads[i], plus(&wide(&before[i]), 0.5, &product), HALF);
        }
    }
    Ok(())
}

/// Kernels scale their sums of smaller values anew where larger ones follow. All may be zero.
fn z(tokens: usize, width: usize) -> Vec<f32> {
    let of_chunk = |i: usize| if tokens == 65 { 0.0 } else { f32::from(1 + (i / width / 32 % 8) as u8) };
    values(6, tokens * width).into_iter().enumerate().map(|(i, value)| of_chunk(i) * value).collect()
}
