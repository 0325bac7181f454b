//! Dropout of the inputs of experts' adapters, against masks that are drawn again here.

use super::super::bench::Bench;
use super::super::case::{Case, Needs, Shapes};
use super::super::inputs::{pcg, values, wide};
use super::super::tolerance::PRODUCT;
use super::{Grouped, experts, source};
use crate::gpu::GpuError;
use crate::ops::dropout::Mask;
use crate::ops::dropout::grouped::{self as dropout, ExpertMask};
use crate::ops::linear::grouped::{self as linear, Columns, ExpertWeight, Source};
use crate::ops::lora::grouped as lora;
use crate::reference::linear as reference;

pub const CASE: Case = Case {
    op: "dropout",
    name: "masks of the inputs of experts' adapters",
    needs: Needs::Any,
    variants: super::super::F32,
    shapes: &Shapes {
        small: &[],
        more: &[
            [4, 2, 1, 8, 4, 0, 0],
            [5, 3, 90, 132, 16, 8192, 128],
            [3, 1, 150, 68, 8, 7, 0],
            [128, 8, 60, 260, 4, 3, 128],
        ],
        check: masks,
    },
};

/// Experts, experts per token, tokens, K, rank, first token of the pass, first column of the backward.
type Shape = [usize; 7];

/// Rows ordered by token and by choice.
fn masks(b: &mut Bench, shape: &Shape) -> Result<(), GpuError> {
    both_ways(b, shape, false)?;
    both_ways(b, shape, true)
}

const KEY: u32 = 99;
const PROBABILITY: f64 = 0.3;

/// The factors of a choice's input.
fn mask(row: usize, k: usize) -> Vec<f64> {
    let (threshold, scale) =
        ((PROBABILITY * 2f64.powi(32)) as u32, f64::from((1.0 / (1.0 - PROBABILITY)) as f32));
    let draw = |c: u32| pcg(pcg(KEY).wrapping_add((row * k) as u32 + c));
    (0..k as u32).map(|c| if draw(c) < threshold { 0.0 } else { scale }).collect()
}

fn product(x: &[f64], y: &[f64]) -> Vec<f64> {
    x.iter().zip(y).map(|(x, y)| x * y).collect()
}

/// `z = (mask·x)·A_eᵀ`, `dA_e += Σ uᵀ·(mask·x)` and `dx += mask·(u·A_e)`.
fn both_ways(b: &mut Bench, shape: &Shape, by_token: bool) -> Result<(), GpuError> {
    let &[count, used, tokens, k, r, first_token, first] = shape;
    let g = Grouped::new(b, experts(count, used), tokens)?;
    let (rows, groups) = (g.rows.len(), &g.groups);
    let x = values(1, k * if by_token { tokens } else { rows });
    let (a, u) = (values(2, count * r * k), values(3, rows * r));
    let (da_before, dx_before) = (values(4, a.len()), values(5, rows * k));
    let (mut z, mut da, mut dx) = (Vec::new(), wide(&da_before), Vec::new());
    for (row, choice) in g.choices() {
        let from = if by_token { choice / used } else { row };
        let (m, e) = (mask(first_token * used + choice, k), g.routing.experts[choice]);
        let own = wide(&a[e * r * k..][..r * k]);
        let x = product(&m, &wide(&x[from * k..][..k]));
        z.extend(reference::forward(&x, &own, k));
        let u = wide(&u[row * r..][..r]);
        for (i, u) in u.iter().enumerate() {
            x.iter().enumerate().for_each(|(j, x)| da[(e * r + i) * k + j] += u * x);
        }
        let back = product(&m, &reference::backward(&u, &own, k));
        dx.extend((first..k).map(|c| f64::from(dx_before[row * k + c]) + back[c]));
    }

    let (x, u) = (b.input_within((4, 8), k, &x)?, b.input_within((4, 0), r, &u)?);
    let (a, gradient) = (b.param(k, &a)?, b.param(k, &da_before)?);
    let z_rows = b.in_out_within((4, 4), r, &vec![0.0; rows * r])?;
    let part: Vec<f32> = dx_before.chunks(k).flat_map(|row| &row[first..]).copied().collect();
    let dx_rows = b.in_out_within((8, 4), k - first, &part)?;
    let mask = ExpertMask { mask: Mask { probability: PROBABILITY, key: KEY }, first_token };
    b.run(|rec| {
        let w = ExpertWeight::of_param(&a, count);
        let (to, from) = (Columns::all(z_rows.view()), source(&x, by_token));
        linear::forward_masked(rec, to, from, &w, mask, groups, tokens);
        lora::gradient(rec, &gradient, Source::Rows(u.view()), from, Some(mask), 1.0, None, groups, tokens);
        let to = Columns { y: dx_rows.view(), first };
        dropout::backward(rec, to, u.view(), &a, mask, groups, tokens);
    })?;
    let name = format!("{shape:?} by token={by_token}");
    g.expect(b, &format!("z {name}"), &z_rows, z, PRODUCT);
    b.expect_param(format!("dA {name}"), &gradient, da, PRODUCT);
    g.expect(b, &format!("dx {name}"), &dx_rows, dx, PRODUCT);
    Ok(())
}
