//! Gradients of the adapter's matrices.

use super::bench::Bench;
use super::block::Margins;
use super::case::{Case, Needs, Shapes};
use super::inputs::{plus, values, wide};
use super::tolerance::Tolerance;
use crate::gpu::GpuError;
use crate::ops::lora;
use crate::reference::linear as reference;

/// Sums of up to 200 products.
const PRODUCT: Tolerance = Tolerance::new(1e-6, 1e-6, 1e-6);

/// Margins of 4 columns.
const BOTH: [Margins; 3] = [(4, 4); 3];

pub const CASES: [Case; 1] = [Case {
    op: "lora",
    name: "gradients",
    needs: Needs::Rows,
    variants: super::ROWS,
    shapes: &Shapes {
        small: &[([67, 12, 132], -2.0, BOTH)],
        more: &[
            ([1, 4, 20], 1.0, [(0, 0); 3]),
            ([7, 12, 252], 0.5, [(0, 0), (4, 8), (12, 4)]),
            ([65, 4, 68], -2.0, [(8, 0), (4, 4), (0, 8)]),
            ([130, 16, 132], 1.0, [(0, 4), (16, 0), (4, 0)]),
            ([200, 68, 4], 0.25, [(4, 4), (0, 0), (0, 0)]),
        ],
        check: gradients,
    },
}];

/// Tokens, rank and width, the scale, and margins of inputs of the layer, of `z` and of `u`.
type Shape = ([usize; 3], f32, [Margins; 3]);

/// `dB += scale·dyᵀ·z` and `dA += uᵀ·x`, added to existing gradients.
fn gradients(b: &mut Bench, &([tokens, rank, n], scale, margins): &Shape) -> Result<(), GpuError> {
    let [x, dy] = [1, 2].map(|seed| values(seed, tokens * n));
    let [u, z] = [3, 4].map(|seed| values(seed, tokens * rank));
    let (a, up) = (values(5, rank * n), values(6, n * rank));
    let (dy_block, x_block) = (b.input_within(margins[0], n, &dy)?, b.input_within(margins[0], n, &x)?);
    let (z_block, u_block) = (b.input_within(margins[1], rank, &z)?, b.input_within(margins[2], rank, &u)?);
    let (db, da) = (b.param(rank, &up)?, b.param(n, &a)?);
    b.run(|rec| {
        lora::gradient(rec, &db, dy_block.view(), z_block.view(), scale, tokens);
        lora::gradient(rec, &da, u_block.view(), x_block.view(), 1.0, tokens);
    })?;
    let name = |what: &str| format!("{what}, T={tokens} R={rank} N=K={n} scale={scale} margins={margins:?}");
    let product = reference::gradient(&wide(&dy), &wide(&z), n, rank);
    b.expect_param(name("dB"), &db, plus(&wide(&up), scale.into(), &product), PRODUCT);
    let product = reference::gradient(&wide(&u), &wide(&x), rank, n);
    b.expect_param(name("dA"), &da, plus(&wide(&a), 1.0, &product), PRODUCT);
    Ok(())
}
