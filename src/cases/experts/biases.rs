//! Frozen biases of experts.

use super::super::bench::Bench;
use super::super::case::{Case, Needs, Shapes};
use super::super::inputs::{plus, values, wide};
use super::super::tolerance::PRODUCT;
use super::{Grouped, OF_SELFTEST, experts};
use crate::gpu::GpuError;
use crate::ops::experts::bias::Biases;

pub const CASE: Case = Case {
    op: "experts",
    name: "biases",
    needs: Needs::Any,
    variants: super::super::F32,
    shapes: &Shapes {
        small: &[(OF_SELFTEST, 36)],
        more: &[([5, 3, 1], 4), ([8, 2, 70], 36), ([32, 4, 9], 260), ([128, 8, 90], 20)],
        check,
    },
};

/// Biases of rows by expert, of one row per choice, and summed over a token's choices, and their part of the gradients of weights:
/// experts, experts per token and tokens; width.
fn check(b: &mut Bench, shape: &([usize; 3], usize)) -> Result<(), GpuError> {
    let &([count, used, tokens], d) = shape;
    let (g, choices, name) =
        (Grouped::new(b, experts(count, used), tokens)?, tokens * used, format!("{shape:?}"));
    let (held, scales, before) = (values(1, count * d), values(5, count), values(6, choices));
    let (x, y, dy) = (values(2, choices * d), values(3, tokens * d), values(4, tokens * d));
    let bias = |choice: usize| wide(&held[g.routing.experts[choice] * d..][..d]);
    let scale = |choice: usize| f64::from(scales[g.routing.experts[choice]]);
    let each = |choice: usize| plus(&wide(&x[choice * d..][..d]), 1.0, &bias(choice));
    let (mut summed, mut dweights) = (wide(&y), wide(&before));
    for (choice, dweight) in dweights.iter_mut().enumerate() {
        let token = choice / used;
        for (i, own) in bias(choice).into_iter().enumerate() {
            summed[token * d + i] += g.routing.weights[choice] * scale(choice) * own;
            *dweight += scale(choice) * f64::from(dy[token * d + i]) * own;
        }
    }
    let grouped = b.in_out_within((0, 8), d, &g.rows(d, |choice| wide(&x[choice * d..][..d])))?;
    let (single, to) = (b.in_out_within((0, 4), d, &x)?, b.in_out_within((0, 8), d, &y)?);
    let (dy, scales) = (b.input_within((0, 12), d, &dy)?, b.input(count, &scales)?);
    let found = b.in_out(choices, &before)?;
    let biases = Biases::new(b.gpu.upload("case", &held)?, d);
    b.run(|rec| {
        biases.add(rec, grouped.rows(), &g.groups, tokens);
        biases.add_each(rec, single.rows(), &g.groups, tokens);
        biases.add_summed(rec, to.rows(), scales.rows(), &g.groups, tokens);
        biases.backward(rec, found.rows(), [dy.rows(), scales.rows()], &g.groups, tokens);
    })?;
    g.expect(b, &format!("rows {name}"), &grouped, g.of_choices(|_, choice| each(choice)), PRODUCT);
    b.expect(format!("each {name}"), &single, (0..choices).flat_map(each).collect(), PRODUCT);
    b.expect(format!("sums of tokens {name}"), &to, summed, PRODUCT);
    b.expect(format!("gradients of weights {name}"), &found, dweights, PRODUCT.around(0.1));
    Ok(())
}
