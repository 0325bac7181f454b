//! Routers, rows grouped by expert and their products.

use half::f16;
use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::base::config::{Activation, Experts};
use rullama_train::base::formats::{GgmlType, dequantize, random_blocks};
use rullama_train::gpu::{Gpu, Recorder, Tier};
use rullama_train::ops::Rows;
use rullama_train::ops::experts::bias::Biases;
use rullama_train::ops::experts::combine as expert_combine;
use rullama_train::ops::experts::groups::Groups;
use rullama_train::ops::experts::router;
use rullama_train::ops::gated::grouped as expert_gated;
use rullama_train::ops::gated::grouped_coop16 as coop_expert_gated;
use rullama_train::ops::linear::cuda::grouped::Input;
use rullama_train::ops::linear::cuda::{Fragments, grouped as cuda_expert_linear, product_bytes};
use rullama_train::ops::linear::grouped as expert_linear;
use rullama_train::ops::linear::grouped::{Columns, ExpertWeight, LowRank, Source};
use rullama_train::ops::linear::grouped_coop16 as coop_expert_linear;
use rullama_train::ops::lora::grouped as expert_lora;
use rullama_train::ops::matvec::grouped as expert_matvec;
use rullama_train::ops::pack::Packed;
use rullama_train::ops::pack::grouped as expert_pack;
use rullama_train::reference::{self, Routing};

use super::check::{Block, Check, Held, Outcome, Tolerance, run, sum, values, wide};
use super::linear::widths;

pub(super) const EXACT: Tolerance = Tolerance { norm: 2e-6, relative: 2e-6, absolute: 2e-6 };
const HALF: Tolerance = Tolerance { norm: 1e-3, relative: 2e-3, absolute: 2e-3 };
pub(super) const NONE: u32 = u32::MAX;

fn tolerance(gpu: &Gpu) -> Tolerance {
    if gpu.kernels().tier() == Tier::F32 { EXACT } else { HALF }
}

/// The router's choices, on device and host, and the rows of the groups.
pub(super) struct Grouped {
    pub groups: Groups,
    routing: Routing,
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
        let routing = reference::router::forward(&wide(&scores), experts.count, experts.used, None);
        let groups = Groups::new(gpu, experts, tokens + 3)?;
        let scores = Block::input(gpu, (0, 0), experts.count, &scores);
        run(gpu, |rec| {
            router::forward(rec, &groups, &scores.rows, tokens);
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
        Ok(Grouped { groups, routing, tokens, choices, tiles })
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

const SHAPES: [(usize, usize, usize); 6] =
    [(1, 1, 3), (5, 3, 1), (8, 2, 70), (128, 8, 90), (256, 16, 33), (6, 2, 300)];

/// Chosen experts, ties among them, weights, and the gradient of the scores.
pub fn routers(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("experts, router", EXACT);
    for (count, used, tokens) in SHAPES {
        for steps in [1e6, 4.0] {
            let name = format!("E={count} used={used} T={tokens} steps={steps}");
            let experts = Experts { count, used, width: 4, shared: false };
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
            run(gpu, |rec| router::backward(rec, &dscores.rows, &input.rows, &g.groups, tokens))?;
            check.close_to(&name, count, &dscores.read(gpu, &name)?, &expected, 0.1)?;
        }
    }
    check.done()
}

/// Rows are ordered by expert, then by token, in whole tiles; every choice has its row.
pub fn groups(gpu: &Gpu) -> Outcome {
    for (count, used, tokens) in SHAPES {
        let g = Grouped::new(gpu, Experts { count, used, width: 4, shared: false }, tokens, 1e6)?;
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

/// (experts, used, tokens, which of `widths` is K, N, rank, tiled, gathered, scale)
type Case = (usize, usize, usize, usize, usize, Option<usize>, bool, bool, f32);

const CASES: [Case; 5] = [
    (4, 2, 1, 0, 68, None, false, true, 1.0),
    (5, 2, 90, 2, 132, Some(16), true, true, 0.37),
    (3, 1, 150, 1, 200, Some(32), true, false, -1.5),
    (7, 3, 70, 1, 64, None, false, false, 1.0),
    (5, 2, 700, 1, 264, Some(16), false, true, 0.5),
];

/// A product of tiles on matrices of 16×16, or in CUDA with fragments of two experts at a time; added, where it is backward.
fn on_matrices(
    rec: &mut Recorder,
    to: Columns,
    x: Input,
    w: &ExpertWeight,
    scale: f32,
    lora: Option<&coop_expert_linear::LowRank>,
    groups: &Groups,
    tokens: usize,
    backward: bool,
) {
    let dy = (x.tiles, x.first_column);
    if rec.gpu().kernels().cuda().is_none() {
        return match backward {
            true => coop_expert_linear::backward(rec, to, dy, w, scale, lora, groups, tokens, true),
            false => coop_expert_linear::forward(rec, to, x.tiles, w, scale, lora, groups, tokens),
        };
    }
    let bytes = 2 * product_bytes(w.rows, w.weight.cols, 32);
    let fragments = Fragments::new(rec.gpu(), bytes).expect("the device has room");
    match backward {
        true => cuda_expert_linear::backward(rec, &fragments, to, x, w, scale, lora, groups, tokens, true),
        false => cuda_expert_linear::forward(rec, &fragments, to, x, w, scale, lora, groups, tokens),
    }
}

/// `y = scale·x·W_eᵀ + lora_scale·z·B_eᵀ` and `dx = scale·dy·W_e + u·A_e`, grouped or gathered, written or added.
pub fn products(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("linear of experts", tolerance(gpu));
    for ty in GgmlType::SUPPORTED {
        // Every format in one case; in all cases those that experts have.
        let cases = if matches!(ty, GgmlType::Q4_K | GgmlType::Q5_0) { &CASES[..] } else { &CASES[1..2] };
        for &(count, used, tokens, width, n, rank, tiled, gathered, scale) in cases {
            for backward in [false, true] {
                let k = widths(ty)[width];
                let name = format!("{ty:?} E={count} T={tokens} K={k} N={n} R={rank:?} {tiled} {backward}");
                let g = Grouped::new(gpu, Experts { count, used, width: 4, shared: false }, tokens, 1e6)?;
                let (w, truth) = weight(gpu, ty, [count, n, k], tiled)?;
                let (input, output) = if backward { (n, k) } else { (k, n) };
                let height = if gathered { tokens } else { g.choices.len() };
                // Rows of different size, none with a largest value in [½, 1).
                let size = |i: usize| if (i / input).is_multiple_of(2) { 0.25 } else { 2.0 };
                let x: Vec<f32> =
                    values(1, height * input).iter().enumerate().map(|(i, x)| size(i) * x).collect();
                let source_row = |row: usize, choice: usize| if gathered { choice / used } else { row };
                let (r, lora_scale) = (rank.unwrap_or(16), if backward { 1.0 } else { 0.75 });
                let z = values(2, g.choices.len() * r);
                // B may hold other rows of every expert, before and after those that are used.
                let (above, held_rows) = if backward { (0, output) } else { (8, output + 12) };
                let matrix = values(3, count * r * held_rows);
                let before = values(4, g.choices.len() * output);

                let mut expected = Vec::new();
                for (row, choice) in g.choices.iter().enumerate() {
                    if g.tiles[row / g.groups.tile] == NONE {
                        expected.extend(vec![0.0; output]);
                        continue;
                    }
                    let e = g.tiles[row / g.groups.tile] as usize;
                    let w = &truth[e * n * k..(e + 1) * n * k];
                    let own = wide(&matrix[(e * held_rows + above) * r..][..r * output]);
                    let z = wide(&z[row * r..(row + 1) * r]);
                    let mut y = vec![0.0; output];
                    if *choice != NONE {
                        let from = source_row(row, *choice as usize);
                        let x = wide(&x[from * input..(from + 1) * input]);
                        y = match backward {
                            true => reference::linear::backward(&x, w, k),
                            false => reference::linear::forward(&x, w, k),
                        };
                        y.iter_mut().for_each(|y| *y *= f64::from(scale));
                    }
                    // In models z is zero in padding rows. Here it is not, but their results are not read.
                    if rank.is_some() && *choice != NONE {
                        let term = match backward {
                            true => reference::linear::backward(&z, &own, output),
                            false => reference::linear::forward(&z, &own, r),
                        };
                        y.iter_mut().zip(term).for_each(|(y, t)| *y += lora_scale * t);
                    }
                    if backward {
                        y = sum(&y, &wide(&before[row * output..(row + 1) * output]));
                    }
                    expected.extend(y);
                }

                let x_rows = Block::input(gpu, (4, 8), input, &x);
                let filled: Vec<f32> = z
                    .iter()
                    .enumerate()
                    .map(|(i, z)| if g.choices[i / r] == NONE { 0.0 } else { *z })
                    .collect();
                let z_rows = Block::input(gpu, (0, 0), r, &filled);
                let held = Held::new(gpu, if backward { output } else { r }, &matrix);
                let y = Block::in_out(gpu, (8, 4), output, &before);
                // The columns behind the first 128, once more.
                let rest = output.saturating_sub(128);
                let of_rest = |row: &[f32]| row[output - rest..].to_vec();
                let before_rest: Vec<f32> = before.chunks(output).flat_map(of_rest).collect();
                let y_rest = (rest > 0).then(|| Block::in_out(gpu, (4, 8), rest, &before_rest));
                let source = match gathered {
                    true => Source::Tokens(x_rows.view()),
                    false => Source::Rows(x_rows.view()),
                };
                let groups = &g.groups;
                let mut to = vec![Columns::all(y.view())];
                to.extend(y_rest.as_ref().map(|rest| Columns { y: rest.view(), first: 128 }));
                if gpu.kernels().reads_tiles() {
                    let packed = Packed::new(gpu, "test", g.choices.len(), input)?;
                    let packed_z = Packed::new(gpu, "test", g.choices.len(), r)?;
                    let lora = rank.map(|rank| coop_expert_linear::LowRank {
                        z: &packed_z,
                        matrix: &held.param,
                        first_row: above,
                        rank,
                        scale: lora_scale as f32,
                    });
                    run(gpu, |rec| {
                        expert_pack::pack(rec, &packed, source, input, groups, tokens);
                        let z = Source::Rows(z_rows.view());
                        expert_pack::pack_alike(rec, &packed_z, z, r, groups, tokens, &packed);
                        let mut x = Input { tiles: &packed, first_column: 0, of_tokens: false };
                        let of_tokens = Packed::new(gpu, "test", tokens, input).expect("the device has room");
                        for to in to {
                            on_matrices(rec, to, x, &w, scale, lora.as_ref(), groups, tokens, backward);
                            // Products in CUDA take the columns behind the first 128 from the tokens' rows.
                            if gathered && gpu.kernels().cuda().is_some() {
                                of_tokens.pack(rec, x_rows.view(), input, tokens);
                                x = Input { tiles: &of_tokens, first_column: 0, of_tokens: true };
                            }
                        }
                    })?;
                } else {
                    let lora = rank.map(|rank| LowRank {
                        z: z_rows.view(),
                        matrix: &held.param,
                        first_row: above,
                        rank,
                        scale: lora_scale as f32,
                    });
                    let lora = lora.as_ref();
                    run(gpu, |rec| {
                        for to in to {
                            match backward {
                                true => expert_linear::backward(
                                    rec, to, source, &w, scale, lora, groups, tokens, true,
                                ),
                                false => {
                                    expert_linear::forward(rec, to, source, &w, scale, lora, groups, tokens);
                                }
                            }
                        }
                    })?;
                }
                // Columns from `first` on, of the rows that hold a choice.
                let pick = |values: &[f64], width: usize, first: usize| -> Vec<f64> {
                    let rows = values.chunks(width).enumerate().filter(|(row, _)| g.choices[*row] != NONE);
                    rows.flat_map(|(_, row)| row[first..].to_vec()).collect()
                };
                let found = pick(&y.read(gpu, &name)?, output, 0);
                check.close(&name, output, &found, &pick(&expected, output, 0))?;
                if let Some(y_rest) = y_rest {
                    let found = pick(&y_rest.read(gpu, &name)?, rest, 0);
                    check.close(&format!("{name}, rest"), rest, &found, &pick(&expected, output, 128))?;
                }
            }
        }
    }
    check.done()
}

/// Frozen biases of rows by expert, of one row per choice, and of sums over a token's choices, with the gradients of their weights.
pub fn biases(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("experts, biases", EXACT);
    for (count, used, tokens, width) in [(5, 3, 1, 4), (8, 2, 70, 36), (32, 4, 9, 260), (128, 8, 90, 20)] {
        let name = format!("E={count} used={used} T={tokens} width={width}");
        let g = Grouped::new(gpu, Experts { count, used, width: 4, shared: false }, tokens, 1e6)?;
        let choices = tokens * used;
        let (held, scales, before) = (values(1, count * width), values(5, count), values(6, choices));
        let (x, y, dy) = (values(2, choices * width), values(3, tokens * width), values(4, tokens * width));
        let bias = |choice: usize| wide(&held[g.routing.experts[choice] * width..][..width]);
        let each = |choice: usize| sum(&wide(&x[choice * width..][..width]), &bias(choice));
        let (mut summed, mut dweights) = (wide(&y), wide(&before));
        for choice in 0..choices {
            let (token, scale) = (choice / used, f64::from(scales[g.routing.experts[choice]]));
            for (i, b) in bias(choice).into_iter().enumerate() {
                summed[token * width + i] += g.routing.weights[choice] * scale * b;
                dweights[choice] += scale * f64::from(dy[token * width + i]) * b;
            }
        }
        let on_device = |x: &[f64]| x.iter().map(|x| *x as f32).collect::<Vec<f32>>();
        let by_expert = g.rows(width, |choice| wide(&x[choice * width..][..width]));
        let grouped = Block::in_out(gpu, (0, 8), width, &on_device(&by_expert));
        let (single, to) = (Block::in_out(gpu, (0, 4), width, &x), Block::in_out(gpu, (0, 8), width, &y));
        let (dy, scales) =
            (Block::input(gpu, (0, 12), width, &dy), Block::input(gpu, (0, 0), count, &scales));
        let found = Block::in_out(gpu, (0, 0), choices, &before);
        let biases = Biases::new(gpu.upload("biases", &held)?, width);
        run(gpu, |rec| {
            biases.add(rec, &grouped.rows, &g.groups, tokens);
            biases.add_each(rec, &single.rows, &g.groups, tokens);
            biases.add_summed(rec, &to.rows, &scales.rows, &g.groups, tokens);
            biases.backward(rec, &found.rows, [&dy.rows, &scales.rows], &g.groups, tokens);
        })?;
        let used_rows = |found: Vec<f64>| {
            let pairs = found.chunks(width).zip(&g.choices).filter(|(_, choice)| **choice != NONE);
            pairs.flat_map(|(row, _)| row.to_vec()).collect::<Vec<f64>>()
        };
        let expected: Vec<f64> =
            g.choices.iter().filter(|choice| **choice != NONE).flat_map(|c| each(*c as usize)).collect();
        check.close(&name, width, &used_rows(grouped.read(gpu, &name)?), &expected)?;
        let expected: Vec<f64> = (0..choices).flat_map(each).collect();
        check.close(&format!("{name} each"), width, &single.read(gpu, &name)?, &expected)?;
        check.close(&format!("{name} summed"), width, &to.read(gpu, &name)?, &summed)?;
        check.close_to(&format!("{name} weights"), used, &found.read(gpu, &name)?, &dweights, 0.1)?;
    }
    check.done()
}

fn source(block: &Block, by_token: bool) -> Source<'_> {
    match by_token {
        true => Source::Tokens(block.view()),
        false => Source::Rows(block.view()),
    }
}

/// (experts, used, tokens, which of `widths` is K, N, rank, tiled)
const SHORT: [(usize, usize, usize, usize, usize, usize, bool); 3] =
    [(4, 2, 1, 0, 68, 0, false), (8, 3, 8, 2, 36, 4, true), (128, 8, 3, 1, 20, 16, false)];

/// Products of a short pass without groups: for each choice, and summed over those of a token.
pub fn short(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("matvec of experts", EXACT);
    for ty in GgmlType::SUPPORTED {
        for (count, used, tokens, width, n, rank, tiled) in SHORT {
            let k = widths(ty)[width];
            let name = format!("{ty:?} E={count} T={tokens} K={k} N={n} R={rank} {tiled}");
            let g = Grouped::new(gpu, Experts { count, used, width: 4, shared: false }, tokens, 1e6)?;
            let (w, truth) = weight(gpu, ty, [count, n, k], tiled)?;
            let (x, by_choice) = (values(1, tokens * k), values(2, tokens * used * k));
            let (r, above, held_rows) = (rank.max(4), 4, n + 7);
            let (z, matrix) = (values(3, tokens * used * r), values(4, count * held_rows * r));
            let scales = values(5, count);
            let one = |choice: usize, x: &[f32]| {
                let e = g.routing.experts[choice];
                let mut y = reference::linear::forward(&wide(x), &truth[e * n * k..(e + 1) * n * k], k);
                if rank > 0 {
                    let b = wide(&matrix[(e * held_rows + above) * r..][..n * r]);
                    let term = reference::linear::forward(&wide(&z[choice * r..][..r]), &b, r);
                    y.iter_mut().zip(term).for_each(|(y, t)| *y += 0.75 * t);
                }
                y
            };
            let each: Vec<f64> = (0..tokens * used).flat_map(|c| one(c, &x[c / used * k..][..k])).collect();
            let mut summed = vec![0.0; tokens * n];
            for c in 0..tokens * used {
                let factor = g.routing.weights[c] * f64::from(scales[g.routing.experts[c]]);
                let y = one(c, &by_choice[c * k..][..k]);
                summed[c / used * n..][..n].iter_mut().zip(y).for_each(|(sum, y)| *sum += factor * y);
            }
            let (x_rows, choice_rows) =
                (Block::input(gpu, (4, 8), k, &x), Block::input(gpu, (8, 4), k, &by_choice));
            let (z_rows, scale_rows) =
                (Block::input(gpu, (0, 4), r, &z), Block::input(gpu, (0, 0), count, &scales));
            let held = Held::new(gpu, r, &matrix);
            let term = LowRank { z: z_rows.view(), matrix: &held.param, first_row: above, rank, scale: 0.75 };
            let term = (rank > 0).then_some(&term);
            let y_each = Block::output(gpu, (4, 4), n, tokens * used);
            let y_summed = Block::output(gpu, (0, 0), n, tokens);
            run(gpu, |rec| {
                let x = Source::Tokens(x_rows.view());
                expert_matvec::each(rec, y_each.view(), x, &w, term, &g.groups, tokens);
                let (y, x) = (y_summed.view(), choice_rows.view());
                expert_matvec::summed(rec, y, x, &w, term, &scale_rows.rows, &g.groups, tokens);
            })?;
            check.close(&name, n, &y_each.read(gpu, &name)?, &each)?;
            check.close(&format!("{name} summed"), n, &y_summed.read(gpu, &name)?, &summed)?;
        }
    }
    check.done()
}

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
        let g = Grouped::new(gpu, Experts { count, used, width: 4, shared: false }, tokens, 1e6)?;
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
            expert_lora::gradient(rec, &dw.param, p, q, None, scale as f32, scales, &g.groups, tokens)
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
            expert_lora::gradient_packed(rec, &dw.param, &packed, q, scale as f32, &g.groups, tokens)
        })?;
        check.close(&format!("{name} packed"), m, &dw.read(gpu, &name)?, &expected(&rounded, false))?;
    }
    check.done()
}

/// The gated unit with the gradients of the choices' weights, and the combination by token: together the reference's experts.
pub fn whole(gpu: &Gpu) -> Outcome {
    Activation::ALL.into_iter().try_for_each(|activation| whole_with(gpu, activation))
}

fn whole_with(gpu: &Gpu, activation: Activation) -> Outcome {
    let mut check = Check::new("gated of experts", tolerance(gpu));
    for (count, used, tokens, f, d) in [(4, 2, 1, 4, 8), (8, 2, 70, 36, 24), (128, 8, 90, 96, 20)] {
        let name = format!("{activation:?} E={count} used={used} T={tokens} F={f} D={d}");
        let g = Grouped::new(gpu, Experts { count, used, width: f, shared: false }, tokens, 1e6)?;
        let rows = g.choices.len();
        let scales = values(5, count);
        let (mut gate_up, dy, x) =
            (values(2, tokens * used * 2 * f), values(3, tokens * used * f), values(4, tokens * used * d));
        // Large enough for the bounds of gpt-oss's units.
        gate_up.iter_mut().for_each(|x| *x *= 9.0);
        let of = |v: &[f32], w: usize, c: usize| wide(&v[c * w..(c + 1) * w]);
        let on_device = |v: &[f32], w: usize| {
            let grouped: Vec<f32> = g.rows(w, |c| of(v, w, c)).iter().map(|&x| x as f32).collect();
            Block::input(gpu, (0, 0), w, &grouped)
        };
        let split = |c: usize| {
            let row = of(&gate_up, 2 * f, c);
            (row[..f].to_vec(), row[f..].to_vec())
        };
        let factor = |c: usize| g.routing.weights[c] * f64::from(scales[g.routing.experts[c]]);
        let y = g.rows(f, |c| reference::gated::forward(&split(c).0, &split(c).1, activation));
        let dgate_up = g.rows(2 * f, |c| {
            let dy: Vec<f64> = of(&dy, f, c).iter().map(|x| factor(c) * x).collect();
            let (dgate, dup) = reference::gated::backward(&dy, &split(c).0, &split(c).1, activation);
            [dgate, dup].concat()
        });
        let dweights: Vec<f64> = (0..tokens * used)
            .map(|c| {
                let y = reference::gated::forward(&split(c).0, &split(c).1, activation);
                let inner: f64 = y.iter().zip(of(&dy, f, c)).map(|(a, b)| a * b).sum();
                f64::from(scales[g.routing.experts[c]]) * inner
            })
            .collect();

        let (inputs, dy_rows) = (on_device(&gate_up, 2 * f), on_device(&dy, f));
        let scale_rows = Block::input(gpu, (0, 0), count, &scales);
        let dweights_rows = Rows::new(gpu, "test", 1, tokens * used)?;
        let backward_inputs = [&dy_rows.rows, &inputs.rows, &scale_rows.rows];
        if gpu.kernels().reads_tiles() {
            // A product with ones shows the packed rows, for every expert.
            let product = |packed: &Packed, width: usize| -> Result<Vec<f64>, Failed> {
                let one: Vec<f32> = (0..count * width * width)
                    .map(|i| f32::from(u8::from((i % (width * width)).is_multiple_of(width + 1))))
                    .collect();
                let one = Held::new(gpu, width, &one);
                let out = Rows::new(gpu, "test", rows, width)?;
                let one = ExpertWeight::of_param(&one.param, count);
                run(gpu, |rec| {
                    coop_expert_linear::forward(
                        rec,
                        Columns::all(out.all()),
                        packed,
                        &one,
                        1.0,
                        None,
                        &g.groups,
                        tokens,
                    )
                })?;
                g.read(gpu, &out, width)
            };
            let packed = Packed::new(gpu, "test", rows, 2 * f)?;
            run(gpu, |rec| {
                coop_expert_gated::forward(rec, &packed, &inputs.rows, activation, &g.groups, tokens)
            })?;
            check.close(&name, f, &product(&packed, f)?, &y)?;
            let out = (&packed, &dweights_rows);
            run(gpu, |rec| {
                coop_expert_gated::backward(rec, out, backward_inputs, activation, &g.groups, tokens)
            })?;
            check.close(&name, 2 * f, &product(&packed, 2 * f)?, &dgate_up)?;
        } else {
            let out = Rows::new(gpu, "test", rows, f)?;
            run(gpu, |rec| expert_gated::forward(rec, &out, &inputs.rows, activation, &g.groups, tokens))?;
            check.close(&name, f, &g.read(gpu, &out, f)?, &y)?;
            let out = Rows::new(gpu, "test", rows, 2 * f)?;
            run(gpu, |rec| {
                expert_gated::backward(
                    rec,
                    [&out, &dweights_rows],
                    backward_inputs,
                    activation,
                    &g.groups,
                    tokens,
                )
            })?;
            check.close(&name, 2 * f, &g.read(gpu, &out, 2 * f)?, &dgate_up)?;
        }
        let found: Vec<f32> = block_on(gpu.read(&dweights_rows.buffer, tokens * used))?;
        check.close_to(&name, used, &wide(&found), &dweights, 0.1)?;

        let x_rows = on_device(&x, d);
        for weighted in [true, false] {
            let mut expected = vec![0.0; tokens * d];
            for c in 0..tokens * used {
                let factor = if weighted { factor(c) } else { 1.0 };
                let own = of(&x, d, c);
                (0..d).for_each(|i| expected[c / used * d + i] += factor * own[i]);
            }
            let y = Block::output(gpu, (0, 0), d, tokens);
            run(gpu, |rec| match weighted {
                true => {
                    expert_combine::forward(rec, y.view(), &x_rows.rows, &scale_rows.rows, &g.groups, tokens)
                }
                false => expert_combine::backward(rec, y.view(), &x_rows.rows, &g.groups, tokens),
            })?;
            check.close(&format!("{name} combined"), d, &y.read(gpu, &name)?, &expected)?;
        }
        assert_eq!(g.tokens, tokens);
    }
    check.done()
}
