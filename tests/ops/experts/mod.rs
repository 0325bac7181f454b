//! Routers, rows grouped by expert, and their products.

pub mod biases;
pub mod dropout;
pub mod gated;
pub mod gradients;
pub mod products;
pub mod routing;

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::base::config::{Experts, Gating};
use rullama_train::base::formats::{GgmlType, dequantize, random_blocks};
use rullama_train::gpu::{Gpu, Tier};
use rullama_train::ops::Rows;
use rullama_train::ops::experts::groups::Groups;
use rullama_train::ops::experts::router;
use rullama_train::ops::linear::grouped::{ExpertWeight, Source};
use rullama_train::reference::{self, Routing};

use super::check::{Block, Tolerance, run, values, wide};

const EXACT: Tolerance = Tolerance::new(2e-6, 2e-6, 2e-6);
const HALF: Tolerance = Tolerance::new(1e-3, 2e-3, 2e-3);
const NONE: u32 = u32::MAX;

fn tolerance(gpu: &Gpu) -> Tolerance {
    if gpu.kernels().tier() == Tier::F32 { EXACT } else { HALF }
}

/// The router's choices, on device and host, and the rows of the groups.
struct Grouped {
    pub groups: Groups,
    routing: Routing,
    scores: Block,
    tokens: usize,
    /// Choice of each row of all tiles, [`NONE`] for padding and for tiles without expert.
    pub choices: Vec<u32>,
    /// Expert of each tile.
    pub tiles: Vec<u32>,
}

impl Grouped {
    /// Scores whose spread makes some experts popular. They have only `steps` different values, so that many are equal.
    pub fn new(gpu: &Gpu, experts: Experts, tokens: usize, steps: f32) -> Result<Grouped, Failed> {
        let mut scores = values(1, tokens * experts.count);
        for (i, s) in scores.iter_mut().enumerate() {
            let favour = 1.0 / (1 + i % experts.count) as f32;
            *s = ((*s * 2.0 + favour) * steps).round() / steps;
        }
        let selection = values(2, experts.count);
        let routing = reference::router::forward(&wide(&scores), &experts, &wide(&selection), None);
        let groups = Groups::new(gpu, experts, tokens + 3)?;
        let biases = Block::input(gpu, (0, 0), experts.count, &selection);
        let biases = (experts.gating == Gating::Sigmoid).then_some(&biases.rows);
        let scores = Block::input(gpu, (0, 0), experts.count, &scores);
        run(gpu, |rec| {
            router::forward(rec, &groups, &scores.rows, biases, tokens);
            groups.sort(rec, tokens);
        })?;
        let rows = groups.most_rows(tokens);
        let tiles: Vec<u32> = block_on(gpu.read(&groups.tiles.buffer, groups.most_tiles(tokens)))?;
        let mut choices: Vec<u32> = block_on(gpu.read(&groups.choices.buffer, rows))?;
        for (row, choice) in choices.iter_mut().enumerate() {
            if tiles[row / groups.tile] == NONE {
                *choice = NONE;
            }
        }
        Ok(Grouped { groups, routing, scores, tokens, choices, tiles })
    }

    /// Rows of width `width`, `of(choice)` each; padding rows are zero.
    fn rows(&self, width: usize, of: impl Fn(usize) -> Vec<f64>) -> Vec<f64> {
        let row = |choice: &u32| if *choice == NONE { vec![0.0; width] } else { of(*choice as usize) };
        self.choices.iter().flat_map(row).collect()
    }

    /// The device's rows of tiles with an expert.
    fn read(&self, gpu: &Gpu, rows: &Rows, width: usize) -> Result<Vec<f64>, Failed> {
        let all: Vec<f32> = block_on(gpu.read(&rows.buffer, self.choices.len() * rows.stride))?;
        let row = |(i, row): (usize, &[f32])| {
            let used = self.tiles[i / self.groups.tile] != NONE;
            row[..width].iter().map(|&x| if used { f64::from(x) } else { 0.0 }).collect::<Vec<_>>()
        };
        Ok(all.chunks(rows.stride).enumerate().flat_map(row).collect())
    }
}

/// A random matrix for every expert, in tiles of two experts or in one.
fn weight(
    gpu: &Gpu,
    ty: GgmlType,
    [experts, rows, cols]: [usize; 3],
    tiled: bool,
) -> Result<(ExpertWeight, Vec<f64>), Failed> {
    let bytes = random_blocks(ty, experts * rows * cols / ty.block_len(), (rows + cols) as u64);
    let truth = wide(&dequantize(ty, &bytes));
    let mut whole = ExpertWeight::upload(gpu, "test", ty, [experts, rows, cols], &bytes)?;
    if tiled {
        whole.weight.tiles.clear();
        for first in (0..experts).step_by(2) {
            let count = 2.min(experts - first);
            let each = bytes.len() / experts;
            let part = &bytes[first * each..(first + count) * each];
            let part = ExpertWeight::upload(gpu, "test", ty, [count, rows, cols], part)?;
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
