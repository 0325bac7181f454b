//! Gates of attention's output.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{values, wide};
use super::tolerance::GATES;
use crate::gpu::GpuError;
use crate::ops::output_gate;
use crate::ops::pass::{Pass, Scratch};
use crate::reference::gated as reference;

pub const CASES: [Case; 1] = [Case {
    op: "output_gate",
    name: "forward and backward",
    needs: Needs::Any,
    variants: super::F32,
    shapes: &Shapes { small: &[(67, 3, 20)], more: &[(1, 1, 4), (7, 3, 20), (65, 6, 64)], check: both_ways },
}];

/// Queries and gates taken apart, gates applied, and gradients put together again: tokens, heads and their size.
fn both_ways(b: &mut Bench, &(tokens, heads, size): &(usize, usize, usize)) -> Result<(), GpuError> {
    let width = heads * size;
    let both: Vec<f32> = values(1, 2 * tokens * width).iter().map(|x| 8.0 * x).collect();
    let [x, dy, dqueries] = [2, 3, 4].map(|seed| values(seed, tokens * width));
    let scratch = Scratch::for_products(b.gpu, None)?;
    let both_block = b.input(2 * width, &both)?;
    let [x_block, dy_block, dqueries_block] =
        [b.input(width, &x)?, b.input(width, &dy)?, b.input(width, &dqueries)?];
    let (queries, y, dx) = (b.output(width, tokens)?, b.output(width, tokens)?, b.output(width, tokens)?);
    let dboth = b.output(2 * width, tokens)?;
    b.run(|rec| {
        let [both, x, dy, dqueries] =
            [&both_block, &x_block, &dy_block, &dqueries_block].map(|block| block.rows().clone().into());
        let [queries, y, dx, dboth] = [&queries, &y, &dx, &dboth].map(|block| block.rows().clone().into());
        let p = &mut Pass::new(rec, tokens, &scratch);
        output_gate::split(p, &queries, &both, heads);
        output_gate::forward(p, &y, &x, &both, heads);
        output_gate::backward(p, [&dx, &dboth], &dy, &x, &both, heads);
        output_gate::join(p, &dboth, &dqueries, heads);
    })?;
    let half =
        |i: usize| -> Vec<f64> { wide(&both).chunks(size).skip(i).step_by(2).flatten().copied().collect() };
    let gates = half(1);
    let (dx_expected, dgates) = reference::sigmoid_backward(&wide(&dy), &wide(&x), &gates);
    let pairs = wide(&dqueries);
    let dboth_expected: Vec<f64> =
        pairs.chunks(size).zip(dgates.chunks(size)).flat_map(|(q, g)| [q, g].concat()).collect();
    let name = |what: &str| format!("{what}, T={tokens} heads={heads} K={size}");
    b.expect(name("queries"), &queries, half(0), GATES);
    b.expect(name("y"), &y, reference::sigmoid_forward(&wide(&x), &gates), GATES);
    b.expect(name("dx"), &dx, dx_expected, GATES);
    b.expect(name("dboth"), &dboth, dboth_expected, GATES);
    Ok(())
}
