//! The router and the order of rows by expert.

use super::super::bench::Bench;
use super::super::case::{Case, Combined, Needs};
use super::super::inputs::{values, wide};
use super::super::tolerance::PRODUCT;
use super::{FINE, Grouped, OF_SELFTEST, experts};
use crate::base::config::{Experts, Gating};
use crate::gpu::GpuError;
use crate::ops::experts::router;
use crate::reference::router as reference;

pub const CASE: Case = Case {
    op: "experts",
    name: "router and groups",
    needs: Needs::Any,
    variants: super::super::F32,
    shapes: &Combined {
        small: &[
            (OF_SELFTEST, FINE, Gating::Chosen),
            (OF_SELFTEST, FINE, Gating::All),
            (OF_SELFTEST, FINE, Gating::Sigmoid),
        ],
        more: combinations,
        check,
    },
};

/// Experts, experts per token and tokens; steps of the scores; the way that they become weights.
type Shape = ([usize; 3], f32, Gating);

fn combinations() -> Vec<Shape> {
    const SIZES: [[usize; 3]; 6] =
        [[1, 1, 3], [5, 3, 1], [8, 2, 70], [128, 8, 90], [256, 16, 33], [6, 2, 300]];
    let mut shapes = Vec::new();
    for size in SIZES {
        for steps in [FINE, 4.0] {
            shapes.extend([Gating::Chosen, Gating::All, Gating::Sigmoid].map(|gating| (size, steps, gating)));
        }
    }
    shapes
}

/// Chosen experts, ties among them, their weights, the gradient of the scores, and the order of the rows: by expert, then by token, in whole
/// tiles.
fn check(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    let &([count, used, tokens], steps, gating) = shape;
    let g = Grouped::stepped(b, Experts { gating, ..experts(count, used) }, tokens, steps)?;
    let (choices, name) = (tokens * used, format!("{shape:?}"));
    let dweights = values(2, choices);
    let expected = reference::backward(&wide(&dweights), &g.routing, count);
    let (dweights, dscores) = (b.input(choices, &dweights)?, b.output(count, tokens)?);
    let scores = g.scores.rows();
    b.run(|rec| router::backward(rec, dscores.rows(), dweights.rows(), scores, &g.groups, tokens))?;

    let chosen = g.routing.experts.iter().map(|e| *e as u32);
    b.expect_bits(&format!("chosen experts, {name}"), &g.groups.chosen.buffer, chosen);
    let (weights, found) = (g.routing.weights.clone(), &g.groups.weights.buffer);
    b.expect_start(&format!("weights of experts, {name}"), found, weights, PRODUCT);
    b.expect(format!("gradients of scores, {name}"), &dscores, expected, PRODUCT.around(0.1));
    let mut places = vec![0; choices];
    g.choices().for_each(|(row, choice)| places[choice] = row as u32);
    b.expect_bits(&format!("rows of choices, {name}"), &g.groups.places.buffer, places);
    let tokens_of = |e: usize| g.routing.experts.iter().filter(|own| **own == e).count() as u32;
    b.expect_bits(&format!("tokens of experts, {name}"), &g.groups.counts.buffer, (0..count).map(tokens_of));
    let tiles = g.tiles.iter().map(|tile| tile.map_or(u32::MAX, |expert| expert as u32));
    b.expect_bits(&format!("experts of tiles, {name}"), &g.groups.tiles.buffer, tiles);
    // Rows of tiles without an expert may hold anything.
    let used_rows = g.tiles.iter().flatten().count() * g.groups.tile;
    let rows = g.rows[..used_rows].iter().map(|choice| choice.map_or(u32::MAX, |choice| choice as u32));
    b.expect_bits(&format!("choices of rows, {name}"), &g.groups.choices.buffer, rows);
    Ok(())
}
