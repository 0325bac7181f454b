//! Dropout of the inputs of experts' adapters, against masks that are recomputed here.

use rullama_train::base::config::Experts;
use rullama_train::gpu::Gpu;
use rullama_train::ops::dropout::Mask;
use rullama_train::ops::dropout::grouped as expert_dropout;
use rullama_train::ops::dropout::grouped::ExpertMask;
use rullama_train::ops::linear::grouped as expert_linear;
use rullama_train::ops::linear::grouped::{Columns, ExpertWeight, Source};
use rullama_train::ops::lora::grouped as expert_lora;
use rullama_train::reference::linear;

use super::super::check::{Block, Check, Held, Outcome, run, values, wide};
use super::{EXACT, Grouped, NONE, source};

/// PCG output function, RXS-M-XS 32: shaders/common/pcg.wgsl.
fn pcg(value: u32) -> u32 {
    let state = value.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let word = ((state >> ((state >> 28) + 4)) ^ state).wrapping_mul(277_803_737);
    (word >> 22) ^ word
}

/// [experts, used, tokens, K, R, first token of the pass, first column of the backward]
const CASES: [[usize; 7]; 4] = [
    [4, 2, 1, 8, 4, 0, 0],
    [5, 3, 90, 132, 16, 8192, 128],
    [3, 1, 150, 68, 8, 7, 0],
    [128, 8, 60, 260, 4, 3, 128],
];

/// `z = (mask·x)·A_eᵀ`, `dA_e += Σ uᵀ·(mask·x)` and `dx += mask·(u·A_e)`, of rows by token and by choice.
pub fn masks(gpu: &Gpu) -> Outcome {
    let mut check = Check::new("dropout of experts", EXACT);
    for [count, used, tokens, k, r, first_token, first] in CASES {
        for by_token in [false, true] {
            let name = format!("E={count} used={used} T={tokens} K={k} R={r} {by_token}");
            let g = Grouped::new(gpu, Experts { count, used, width: 4, ..Experts::default() }, tokens, 1e6)?;
            let (rows, groups) = (g.choices.len(), &g.groups);
            let mask = ExpertMask { mask: Mask { probability: 0.3, key: 99 }, first_token };
            let (threshold, scale) = ((0.3 * 2f64.powi(32)) as u32, f64::from((1.0 / 0.7) as f32));
            let of_choice = |choice: u32| -> Vec<f64> {
                let row = (first_token * used) as u32 + choice;
                let draw = |c: u32| pcg(pcg(99).wrapping_add(row * k as u32 + c));
                (0..k as u32).map(|c| if draw(c) < threshold { 0.0 } else { scale }).collect()
            };
            let product =
                |x: &[f64], y: &[f64]| -> Vec<f64> { x.iter().zip(y).map(|(x, y)| x * y).collect() };

            let x = values(1, k * if by_token { tokens } else { rows });
            let (a, u) = (values(2, count * r * k), values(3, rows * r));
            let (da_before, dx_before) = (values(4, a.len()), values(5, rows * k));
            let (mut z, mut da, mut dx) = (Vec::new(), wide(&da_before), Vec::new());
            for (row, choice) in g.choices.iter().enumerate().filter(|(_, choice)| **choice != NONE) {
                let from = if by_token { *choice as usize / used } else { row };
                let (m, e) = (of_choice(*choice), g.tiles[row / groups.tile] as usize);
                let own = wide(&a[e * r * k..(e + 1) * r * k]);
                let x = product(&m, &wide(&x[from * k..(from + 1) * k]));
                z.extend(linear::forward(&x, &own, k));
                let u = wide(&u[row * r..(row + 1) * r]);
                for (i, u) in u.iter().enumerate() {
                    for (j, x) in x.iter().enumerate() {
                        da[(e * r + i) * k + j] += u * x;
                    }
                }
                let back = product(&m, &linear::backward(&u, &own, k));
                let before = wide(&dx_before[row * k..(row + 1) * k]);
                dx.extend((first..k).map(|c| before[c] + back[c]));
            }

            let x_rows = Block::input(gpu, (4, 8), k, &x);
            let source = source(&x_rows, by_token);
            let (u_rows, matrix) = (Block::input(gpu, (4, 0), r, &u), Held::new(gpu, k, &a));
            let z_rows = Block::in_out(gpu, (4, 4), r, &vec![0.0; rows * r]);
            let gradient = Held::new(gpu, k, &da_before);
            let part: Vec<f32> = dx_before.chunks(k).flat_map(|row| &row[first..]).copied().collect();
            let dx_rows = Block::in_out(gpu, (8, 4), k - first, &part);
            run(gpu, |rec| {
                let w = ExpertWeight::of_param(&matrix.param, count);
                let to = Columns::all(z_rows.view());
                expert_linear::forward_masked(rec, to, source, &w, mask, groups, tokens);
                let u = Source::Rows(u_rows.view());
                expert_lora::gradient(rec, &gradient.param, u, source, Some(mask), 1.0, None, groups, tokens);
                let to = Columns { y: dx_rows.view(), first };
                expert_dropout::backward(rec, to, u_rows.view(), &matrix.param, mask, groups, tokens);
            })?;
            let pick = |found: Vec<f64>, width: usize| -> Vec<f64> {
                let rows = found.chunks(width).zip(&g.choices).filter(|(_, choice)| **choice != NONE);
                rows.flat_map(|(row, _)| row).copied().collect()
            };
            check.close(&format!("{name} z"), r, &pick(z_rows.read(gpu, &name)?, r), &z)?;
            check.close(&format!("{name} dA"), k, &gradient.read(gpu, &name)?, &da)?;
            let width = k - first;
            check.close(&format!("{name} dx"), width, &pick(dx_rows.read(gpu, &name)?, width), &dx)?;
        }
    }
    check.done()
}
