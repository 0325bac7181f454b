//! Mixtures of experts: the router, rows grouped by expert, their products, gates and gradients, and the way back to tokens.

mod biases;
mod dropout;
mod gated;
mod gradients;
pub mod products;
mod routing;
mod short;

use super::bench::Bench;
use super::block::Block;
use super::case::Case;
use super::inputs::{values, wide};
use super::tolerance::Tolerance;
use crate::base::config::{Experts, Gating};
use crate::base::formats::{GgmlType, dequantize, random_blocks};
use crate::gpu::GpuError;
use crate::ops::experts::{groups::Groups, router};
use crate::ops::linear::grouped::{ExpertWeight, Source};
use crate::reference::{self, Routing};

pub const CASES: [Case; 10] = [
    routing::CASE,
    biases::CASE,
    dropout::CASE,
    gated::CASE,
    gradients::CASES[0],
    gradients::CASES[1],
    products::CASES[0],
    products::CASES[1],
    short::CASES[0],
    short::CASES[1],
];

/// Experts of the self-test, experts per token, and tokens: several tiles for some experts, padding in every last one.
const OF_SELFTEST: [usize; 3] = [5, 2, 90];
/// Steps of scores that leave them as they are.
const FINE: f32 = 1e6;

/// `used` of `count` experts for every token.
fn experts(count: usize, used: usize) -> Experts {
    Experts { count, used, width: 4, ..Experts::default() }
}

/// The router's choices on the device and in f64, and the rows that they are grouped in.
struct Grouped {
    groups: Groups,
    routing: Routing,
    scores: Block,
    tokens: usize,
    /// Choice of each row, `None` in padding.
    rows: Vec<Option<usize>>,
    /// Expert of each tile, `None` behind the last one.
    tiles: Vec<Option<usize>>,
}

impl Grouped {
    fn new(b: &Bench, experts: Experts, tokens: usize) -> Result<Grouped, GpuError> {
        Grouped::stepped(b, experts, tokens, FINE)
    }

    /// Scores whose spread makes some experts popular. They are multiples of `1 / steps`, so that many may be equal.
    fn stepped(b: &Bench, experts: Experts, tokens: usize, steps: f32) -> Result<Grouped, GpuError> {
        let Experts { count, used, .. } = experts;
        let favour = |i: usize| 1.0 / (1 + i % count) as f32;
        let stepped = |(i, s): (usize, &f32)| ((*s * 2.0 + favour(i)) * steps).round() / steps;
        let scores: Vec<f32> = values(1, tokens * count).iter().enumerate().map(stepped).collect();
        let selection = values(2, count);
        let routing = reference::router::forward(&wide(&scores), &experts, &wide(&selection), None);
        let groups = Groups::new(b.gpu, experts, tokens + 3)?;
        let biases = b.input(count, &selection)?;
        let biases = (experts.gating == Gating::Sigmoid).then_some(biases.rows());
        let scores = b.input(count, &scores)?;
        b.run(|rec| {
            router::forward(rec, &groups, scores.rows(), biases, tokens);
            groups.sort(rec, tokens);
        })?;
        let (mut rows, mut tiles) = (Vec::new(), Vec::new());
        for expert in 0..count {
            rows.extend((0..tokens * used).filter(|i| routing.experts[*i] == expert).map(Some));
            rows.resize(rows.len().next_multiple_of(groups.tile), None);
            tiles.resize(rows.len() / groups.tile, Some(expert));
        }
        rows.resize(groups.most_rows(tokens), None);
        tiles.resize(groups.most_tiles(tokens), None);
        Ok(Grouped { groups, routing, scores, tokens, rows, tiles })
    }

    /// Rows in the order of the groups, `of(choice)` each; padding holds zeros.
    fn rows(&self, width: usize, of: impl Fn(usize) -> Vec<f64>) -> Vec<f32> {
        let row = |choice: &Option<usize>| choice.map_or(vec![0.0; width], &of);
        self.rows.iter().flat_map(row).map(|x| x as f32).collect()
    }

    /// Rows of `width` values, those of padding NaN.
    fn among_nan(&self, seed: u64, width: usize) -> Vec<f32> {
        let mut x = values(seed, self.rows.len() * width);
        let rows = x.chunks_mut(width).zip(&self.rows);
        rows.filter(|(_, choice)| choice.is_none()).for_each(|(row, _)| row.fill(f32::NAN));
        x
    }

    /// Rows that hold a choice, and that choice.
    fn choices(&self) -> impl Iterator<Item = (usize, usize)> {
        self.rows.iter().enumerate().filter_map(|(row, choice)| Some((row, (*choice)?)))
    }

    /// Expected values of the rows that hold a choice.
    fn of_choices(&self, of: impl Fn(usize, usize) -> Vec<f64>) -> Vec<f64> {
        self.choices().flat_map(|(row, choice)| of(row, choice)).collect()
    }

    /// Notes what the rows that hold a choice must hold.
    fn expect(&self, b: &mut Bench, name: &str, block: &Block, values: Vec<f64>, tolerance: Tolerance) {
        b.expect_rows(name, block, |row| self.rows[row].is_some(), values, tolerance);
    }

    /// Notes what all rows of the experts' tiles must hold: `of(choice)`, and zeros in padding.
    fn expect_tiles(
        &self,
        b: &mut Bench,
        name: &str,
        block: &Block,
        of: impl Fn(usize) -> Vec<f64>,
        tolerance: Tolerance,
    ) {
        let in_tile = |row: usize| self.tiles[row / self.groups.tile].is_some();
        let row = |row: usize| self.rows[row].map_or(vec![0.0; block.width], &of);
        let values = (0..self.rows.len()).filter(|at| in_tile(*at)).flat_map(row).collect();
        b.expect_rows(name, block, in_tile, values, tolerance);
    }
}

/// A random matrix for every expert, in tiles of two experts or in one.
fn weight(
    b: &Bench,
    ty: GgmlType,
    shape @ [experts, rows, cols]: [usize; 3],
    tiled: bool,
) -> Result<(ExpertWeight, Vec<f64>), GpuError> {
    let bytes = random_blocks(ty, experts * rows * cols / ty.block_len(), (rows + cols) as u64);
    let truth = wide(&dequantize(ty, &bytes));
    let mut whole = ExpertWeight::upload(b.gpu, "case", ty, shape, &bytes)?;
    if tiled {
        whole.weight.tiles.clear();
        let each = bytes.len() / experts;
        for first in (0..experts).step_by(2) {
            let count = 2.min(experts - first);
            let part = &bytes[first * each..(first + count) * each];
            let part = ExpertWeight::upload(b.gpu, "case", ty, [count, rows, cols], part)?;
            let mut tile = part.weight.tiles[0].clone();
            tile.first_row = first * rows;
            whole.weight.tiles.push(tile);
        }
    }
    Ok((whole, truth))
}

fn source(block: &Block, by_token: bool) -> Source<'_> {
    match by_token {
        true => Source::Tokens(block.view()),
        false => Source::Rows(block.view()),
    }
}
