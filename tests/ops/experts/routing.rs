//! The router and the order of rows by expert.

use pollster::block_on;
use rullama_train::base::config::{Experts, Gating};
use rullama_train::gpu::Gpu;
use rullama_train::ops::experts::router;
use rullama_train::reference;

use super::super::check::{Block, Check, Outcome, run, values, wide};
use super::{EXACT, Grouped, NONE};

const SHAPES: [(usize, usize, usize); 6] =
    [(1, 1, 3), (5, 3, 1), (8, 2, 70), (128, 8, 90), (256, 16, 33), (6, 2, 300)];

/// Chosen experts, ties among them, weights, and the gradient of the scores.
pub fn routers(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("experts, router", EXACT);
    for (count, used, tokens) in SHAPES {
        let all = [Gating::Chosen, Gating::All, Gating::Sigmoid];
        for (steps, gating) in [1e6, 4.0].into_iter().flat_map(|steps| all.map(|gating| (steps, gating))) {
            let name = format!("E={count} used={used} T={tokens} steps={steps} {gating:?}");
            let experts = Experts { count, used, width: 4, gating, ..Experts::default() };
            let g = Grouped::new(gpu, experts, tokens, steps)?;
            let chosen: Vec<u32> = block_on(gpu.read(&g.groups.chosen.buffer, tokens * used))?;
            let expected: Vec<u32> = g.routing.experts.iter().map(|&e| e as u32).collect();
            if chosen != expected {
                let at = chosen.iter().zip(&expected).position(|(f, e)| f != e).unwrap_or(0);
                let (found, expected) = (chosen[at], expected[at]);
                return Err(format!("{name}: choice {at}: expected {expected}, found {found}").into());
            }
            let weights: Vec<f32> = block_on(gpu.read(&g.groups.weights.buffer, tokens * used))?;
            check.close(&name, used, &wide(&weights), &g.routing.weights)?;

            let dweights = values(2, tokens * used);
            let expected = reference::router::backward(&wide(&dweights), &g.routing, count);
            let input = Block::input(gpu, (0, 0), tokens * used, &dweights);
            let dscores = Block::output(gpu, (0, 0), count, tokens);
            let (from, scores) = (&input.rows, &g.scores.rows);
            run(gpu, |rec| router::backward(rec, &dscores.rows, from, scores, &g.groups, tokens))?;
            check.close_to(&name, count, &dscores.read(gpu, &name)?, &expected, 0.1)?;
        }
    }
    check.done()
}

/// Rows are ordered by expert, then by token, in whole tiles; every choice has its row.
pub fn groups(gpu: &Gpu) -> Outcome {
    for (count, used, tokens) in SHAPES {
        let g = Grouped::new(gpu, Experts { count, used, width: 4, ..Experts::default() }, tokens, 1e6)?;
        let mut expected = Vec::new();
        let mut tiles = Vec::new();
        let mut counts = vec![0u32; count];
        for (expert, of_expert_count) in counts.iter_mut().enumerate() {
            let of_expert = (0..tokens * used).filter(|&i| g.routing.experts[i] == expert);
            expected.extend(of_expert.map(|i| i as u32));
            *of_expert_count = (expected.len() - tiles.len() * g.groups.tile) as u32;
            expected.resize(expected.len().next_multiple_of(g.groups.tile), NONE);
            tiles.resize(expected.len() / g.groups.tile, expert as u32);
        }
        expected.resize(g.choices.len(), NONE);
        tiles.resize(g.tiles.len(), NONE);
        let places: Vec<u32> = block_on(gpu.read(&g.groups.places.buffer, tokens * used))?;
        let found: Vec<u32> = block_on(gpu.read(&g.groups.counts.buffer, count))?;
        let name = format!("E={count} used={used} T={tokens}");
        if g.choices != expected || g.tiles != tiles || found != counts {
            return Err(format!("{name}: rows are not where they belong").into());
        }
        for (choice, place) in places.iter().enumerate() {
            if g.choices[*place as usize] as usize != choice {
                return Err(format!("{name}: choice {choice} is not in row {place}").into());
            }
        }
    }
    Ok(())
}
