//! Products of grouped rows and of short passes with the matrices of experts.

use rullama_train::base::config::Experts;
use rullama_train::base::formats::GgmlType;
use rullama_train::cases::inputs::widths;
use rullama_train::gpu::{Gpu, Recorder};
use rullama_train::ops::experts::groups::Groups;
use rullama_train::ops::linear::cuda::grouped::Input;
use rullama_train::ops::linear::cuda::{Panels, grouped as cuda_linear, product_bytes};
use rullama_train::ops::linear::grouped as linear;
use rullama_train::ops::linear::grouped::{Columns, ExpertWeight, LowRank, Source};
use rullama_train::ops::linear::grouped_coop16 as coop_linear;
use rullama_train::ops::matvec::grouped as matvec;
use rullama_train::ops::pack::Packed;
use rullama_train::ops::pack::grouped as pack;
use rullama_train::reference;

use super::super::check::{Block, Check, Held, Outcome, run, sum, values, wide};
use super::{EXACT, Grouped, NONE, tolerance, weight};

/// (experts, used, tokens, which of `widths` is K, N, rank, tiled, gathered, scale)
type Case = (usize, usize, usize, usize, usize, Option<usize>, bool, bool, f32);

const CASES: [Case; 5] = [
    (4, 2, 1, 0, 68, None, false, true, 1.0),
    (5, 2, 90, 2, 132, Some(16), true, true, 0.37),
    (3, 1, 150, 1, 200, Some(32), true, false, -1.5),
    (7, 3, 70, 1, 64, None, false, false, 1.0),
    (5, 2, 700, 1, 264, Some(16), false, true, 0.5),
];

/// A product of tiles on matrices of 16×16, or in CUDA with panels of two experts at a time; added, where it is backward.
fn on_matrices(
    rec: &mut Recorder,
    to: Columns,
    x: Input,
    w: &ExpertWeight,
    scale: f32,
    lora: Option<&coop_linear::LowRank>,
    groups: &Groups,
    tokens: usize,
    backward: bool,
) {
    let dy = (x.tiles, x.first_column);
    if rec.gpu().kernels().cuda().is_none() {
        return match backward {
            true => coop_linear::backward(rec, to, dy, w, scale, lora, groups, tokens, true),
            false => coop_linear::forward(rec, to, x.tiles, w, scale, lora, groups, tokens),
        };
    }
    let bytes = 2 * product_bytes(w.rows, w.weight.cols, 32);
    let panels = Panels::new(rec.gpu(), bytes).expect("the device has room");
    match backward {
        true => cuda_linear::backward(rec, &panels, to, x, w, scale, lora, groups, tokens, true),
        false => cuda_linear::forward(rec, &panels, to, x, w, scale, lora, groups, tokens),
    }
}

/// `y = scale·x·W_eᵀ + lora_scale·z·B_eᵀ` and `dx = scale·dy·W_e + u·A_e`, grouped or gathered, written or added.
pub fn products(gpu: &Gpu, formats: &[GgmlType]) -> Outcome {
    let mut check = Check::new("linear of experts", tolerance(gpu));
    for ty in formats.iter().copied() {
        // Every format in one case; in all cases those that experts have.
        let cases = if matches!(ty, GgmlType::Q4_K | GgmlType::Q5_0) { &CASES[..] } else { &CASES[1..2] };
        for &(count, used, tokens, width, n, rank, tiled, gathered, scale) in cases {
            for backward in [false, true] {
                let k = widths(ty)[width];
                let name = format!("{ty:?} E={count} T={tokens} K={k} N={n} R={rank:?} {tiled} {backward}");
                let g =
                    Grouped::new(gpu, Experts { count, used, width: 4, ..Experts::default() }, tokens, 1e6)?;
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
                    let lora = rank.map(|rank| coop_linear::LowRank {
                        z: &packed_z,
                        matrix: &held.param,
                        first_row: above,
                        rank,
                        scale: lora_scale as f32,
                    });
                    run(gpu, |rec| {
                        pack::pack(rec, &packed, source, input, groups, tokens);
                        let z = Source::Rows(z_rows.view());
                        pack::pack_alike(rec, &packed_z, z, r, groups, tokens, &packed);
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
                                true => {
                                    linear::backward(rec, to, source, &w, scale, lora, groups, tokens, true)
                                }
                                false => {
                                    linear::forward(rec, to, source, &w, scale, lora, groups, tokens);
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
            let g = Grouped::new(gpu, Experts { count, used, width: 4, ..Experts::default() }, tokens, 1e6)?;
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
                matvec::each(rec, y_each.view(), x, &w, term, &g.groups, tokens);
                let (y, x) = (y_summed.view(), choice_rows.view());
                matvec::summed(rec, y, x, &w, term, &scale_rows.rows, &g.groups, tokens);
            })?;
            check.close(&name, n, &y_each.read(gpu, &name)?, &each)?;
            check.close(&format!("{name} summed"), n, &y_summed.read(gpu, &name)?, &summed)?;
        }
    }
    check.done()
}
