//! Gradients of the adapters of experts.

use half::f16;
use rullama_train::base::config::Experts;
use rullama_train::gpu::Gpu;
use rullama_train::ops::lora::grouped as lora;
use rullama_train::ops::pack::Packed;

use super::super::check::{Block, Check, Held, Outcome, run, values, wide};
use super::{EXACT, Grouped, NONE, source};

/// ([experts, used, tokens, N, M], whether P and Q are ordered by token, whether rows are weighted)
const GRADIENTS: [([usize; 5], [bool; 2], bool); 5] = [
    ([4, 2, 1, 4, 4], [false, false], false),
    ([5, 2, 90, 68, 16], [true, false], true),
    ([3, 1, 150, 16, 132], [false, true], false),
    ([7, 3, 70, 20, 64], [false, false], true),
    ([128, 8, 60, 32, 4], [true, true], true),
];

/// `dW_e += scale·Σ factor·pᵀ·q` over the rows of each expert; padding rows hold NaN.
pub fn gradients(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("lora of experts", EXACT);
    for ([count, used, tokens, n, m], by_token, weighted) in GRADIENTS {
        let g = Grouped::new(gpu, Experts { count, used, width: 4, ..Experts::default() }, tokens, 1e6)?;
        let scales = values(5, count);
        let before = values(6, count * n * m);
        let make = |seed: u64, width: usize, by_token: bool| {
            let height = if by_token { tokens } else { g.choices.len() };
            let mut x = values(seed, height * width);
            let filling = |row: usize| !by_token && g.choices[row] == NONE;
            for (_, row) in x.chunks_mut(width).enumerate().filter(|(row, _)| filling(*row)) {
                row.fill(f32::NAN);
            }
            x
        };
        let (p, q) = (make(7, n, by_token[0]), make(8, m, by_token[1]));
        let scale = 0.75;
        let expected = |p: &[f32], weighted: bool| {
            let mut dw = wide(&before);
            for (row, choice) in g.choices.iter().enumerate().filter(|(_, c)| **c != NONE) {
                let (e, choice) = (g.tiles[row / g.groups.tile] as usize, *choice as usize);
                let at = |x: &[f32], width: usize, by_token: bool| {
                    let from = if by_token { choice / used } else { row };
                    wide(&x[from * width..(from + 1) * width])
                };
                let factor = if weighted { g.routing.weights[choice] * f64::from(scales[e]) } else { 1.0 };
                let (p, q) = (at(p, n, by_token[0]), at(&q, m, by_token[1]));
                for (i, p) in p.iter().enumerate() {
                    for (j, q) in q.iter().enumerate() {
                        dw[(e * n + i) * m + j] += scale * factor * p * q;
                    }
                }
            }
            dw
        };
        let name = format!("E={count} T={tokens} N={n} M={m} {by_token:?} {weighted}");
        let (p_block, q_block) = (Block::input(gpu, (4, 8), n, &p), Block::input(gpu, (0, 4), m, &q));
        let scale_rows = Block::input(gpu, (0, 0), count, &scales);
        let (sources, scales) = (
            [source(&p_block, by_token[0]), source(&q_block, by_token[1])],
            weighted.then_some(&scale_rows.rows),
        );
        let dw = Held::new(gpu, m, &before);
        run(gpu, |rec| {
            let [p, q] = sources;
            lora::gradient(rec, &dw.param, p, q, None, scale as f32, scales, &g.groups, tokens)
        })?;
        check.close(&name, m, &dw.read(gpu, &name)?, &expected(&p, weighted))?;

        if by_token[0] {
            continue;
        }
        // Repeats with rows in f16, packed here as a kernel packs them, each with its own factor.
        let tiles = g.choices.len() / 16;
        let mut halves = vec![f16::NAN; tiles * 16 * n.next_multiple_of(16)];
        let mut rounded = p.clone();
        for (row, values) in rounded.chunks_mut(n).enumerate() {
            for (c, value) in values.iter_mut().enumerate() {
                let half = f16::from_f32(*value);
                halves[((c / 16 * tiles + row / 16) * 16 + row % 16) * 16 + c % 16] = half;
                *value = half.to_f32() * (1 + row % 3) as f32;
            }
        }
        let factors: Vec<f32> = (0..g.choices.len()).map(|row| (1 + row % 3) as f32).collect();
        let packed = Packed::new(gpu, "test", g.choices.len(), n)?;
        gpu.write(packed.bind(0).buffer, &halves);
        gpu.write(packed.bind_factors(0).buffer, &factors);
        let dw = Held::new(gpu, m, &before);
        run(gpu, |rec| {
            let [_, q] = sources;
            lora::gradient_packed(rec, &dw.param, &packed, q, scale as f32, &g.groups, tokens)
        })?;
        check.close(&format!("{name} packed"), m, &dw.read(gpu, &name)?, &expected(&rounded, false))?;
    }
    check.done()
}
