//! The gate of a shared expert.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{plus, values, wide};
use super::tolerance::GATES;
use crate::gpu::GpuError;
use crate::ops::experts::shared;
use crate::ops::pass::{Pass, Scratch};
use crate::reference::gated as reference;

pub const CASES: [Case; 1] = [Case {
    op: "experts",
    name: "the gate of a shared one",
    needs: Needs::Any,
    variants: super::F32,
    shapes: &Shapes { small: &[(21, 68)], more: &[(1, 4), (7, 20), (65, 300), (300, 64)], check: gates },
}];

/// The gated output of a shared expert added to that of the others, and the gradients of output and score: tokens and columns. Rows of
/// the output are longer than its columns, as in decoding.
fn gates(b: &mut Bench, &(tokens, width): &(usize, usize)) -> Result<(), GpuError> {
    let scores: Vec<f32> = values(1, tokens).iter().map(|x| 8.0 * x).collect();
    let [x, routed, dy] = [2, 3, 4].map(|seed| values(seed, tokens * width));
    let scratch = Scratch::for_products(b.gpu, None)?;
    let (scores_block, x_block) = (b.input(1, &scores)?, b.input_within((0, 8), width, &x)?);
    let (routed_block, dy_block) = (b.input(width, &routed)?, b.input(width, &dy)?);
    let (y, dx, dscores) = (b.output(width, tokens)?, b.output(width, tokens)?, b.output(1, tokens)?);
    b.run(|rec| {
        let [scores, x, routed, dy] =
            [&scores_block, &x_block, &routed_block, &dy_block].map(|block| block.rows().clone().into());
        let [to, dx, dscores] = [&y, &dx, &dscores].map(|block| block.rows().clone().into());
        let p = &mut Pass::new(rec, tokens, &scratch);
        shared::forward(p, &to, &routed, &x, &scores);
        shared::backward_scores(p, &dscores, &dy, &x, &scores);
        shared::backward(p, &dx, &dy, &scores);
    })?;
    let (x, scores) = (wide(&x), wide(&scores));
    let y_expected = plus(&reference::rows_forward(&x, &scores), 1.0, &wide(&routed));
    let (dx_expected, dscores_expected) = reference::rows_backward(&wide(&dy), &x, &scores);
    let name = |what: &str| format!("{what}, T={tokens} D={width}");
    b.expect(name("y"), &y, y_expected, GATES);
    b.expect(name("dx"), &dx, dx_expected, GATES);
    b.expect(name("dscores"), &dscores, dscores_expected, GATES.around((width as f64).sqrt()));
    Ok(())
}
