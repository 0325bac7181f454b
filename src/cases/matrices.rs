//! Operations beside products on matrices of 16×16, which read or write f16 tiles, and products with an adapter.

use super::bench::Bench;
use super::block::Block;
use super::cross_entropy::{SOFTCAP, WARM, targets};
use super::inputs::{plus, values, wide};
use super::products::packed;
use super::rms_norm::{EPS, norm};
use super::tolerance::{F16, F32};
use crate::base::config::Activation;
use crate::gpu::GpuError;
use crate::ops::act::Act;
use crate::ops::cross_entropy::{Chunk, coop16 as cross_entropy};
use crate::ops::gated::coop16 as gated;
use crate::ops::heads::{coop16 as heads, coop16_backward as heads_backward};
use crate::ops::lora::FEW;
use crate::ops::lora::coop16 as lora;
use crate::ops::lora::coop16_gradients::{Gradient, gradients};
use crate::ops::lora::coop16_project::{Member, project, project_back};
use crate::ops::norm::Norm;
use crate::ops::norm_add::coop16::{self as norm_add, Then};
use crate::ops::pack::Packed;
use crate::ops::rms_norm::coop16::{self as rms_norm, Through};
use crate::ops::rope::Table;
use crate::ops::row_status::Verdicts;
use crate::reference;
use crate::reference::cross_entropy::Adjusted;

/// Rows and columns: no multiples of 16 or 64.
const SHAPE: (usize, usize) = (67, 132);
/// Rank of the adapters.
const RANK: usize = 16;

fn room(b: &Bench, height: usize, width: usize) -> Result<Packed, GpuError> {
    Packed::new(b.gpu, "case", height, width)
}

/// The tiles as rows of f32.
fn unpacked(b: &Bench, packed: &Packed, width: usize, height: usize) -> Result<Block, GpuError> {
    let y = b.output(width, height)?;
    b.run(|rec| packed.unpack(rec, y.view(), width, height))?;
    Ok(y)
}

/// RMSNorm and its gradient; the sum with a residual, and its norm.
pub fn norms(b: &mut Bench) -> Result<(), GpuError> {
    let (height, width) = SHAPE;
    let [x, dy, base, before] = [1, 2, 3, 6].map(|seed| values(seed, height * width));
    let (w, next) = (values(4, width), values(5, width));
    let (weight, eps) = (wide(&w), f64::from(EPS));
    let y_expected = reference::rms_norm::forward(&wide(&x), Some(&weight), width, eps);
    let dx_expected = reference::rms_norm::backward(&wide(&dy), &wide(&x), Some(&weight), width, eps);
    let sum: Vec<f64> = plus(&y_expected, 1.0, &wide(&base)).iter().map(|x| 0.75 * x).collect();
    let next_expected = reference::rms_norm::forward(&sum, Some(&wide(&next)), width, eps);
    let added_expected: Vec<f64> = plus(&wide(&before), 1.0, &dx_expected).iter().map(|x| 0.5 * x).collect();
    let passed_expected =
        reference::rms_norm::backward(&added_expected, &wide(&base), Some(&wide(&next)), width, eps);
    let (first, second) = (norm(b, &w)?, norm(b, &next)?);
    let (x, dy, base) = (b.input(width, &x)?, b.input(width, &dy)?, b.input(width, &base)?);
    let [y, dx, then, passed] = [(); 4].map(|()| room(b, height, width));
    let (y, dx, then, passed) = (y?, dx?, then?, passed?);
    let (summed, added) = (b.output(width, height)?, b.in_out(width, &before)?);
    b.run(|rec| {
        let [act, base_act] = [&x, &base].map(|rows| Act::from(rows.rows().clone()));
        let through = Some(Through { dx: &passed, x: &base_act, norm: &second });
        rms_norm::backward_add(rec, added.rows(), (dy.rows(), 0), &act, &first, height, 0.5, through);
        rms_norm::forward(rec, &y, x.rows(), &first, height);
        rms_norm::backward(rec, &dx, dy.rows(), &act, &first, height);
        let to = (&then, Then::Norm(&second));
        norm_add::forward(rec, Some(summed.rows()), to, (&act, 0), &first, base.rows(), 0.75, height);
    })?;
    b.expect("sum", &summed, sum, F32);
    b.expect("added dx", &added, added_expected, F32);
    for (name, packed, expected) in [
        ("y", &y, y_expected),
        ("dx", &dx, dx_expected),
        ("norm of the sum", &then, next_expected),
        ("gradient through the next norm", &passed, passed_expected),
    ] {
        let rows = unpacked(b, packed, width, height)?;
        b.expect(name, &rows, expected, F16);
    }
    Ok(())
}

/// A value below 1 that f16 represents: rounded, it stays on the same side of an activation's limits.
fn exact(x: f32) -> f32 {
    (x * 1024.0).round() / 1024.0
}

/// The gated unit and its gradients, of values beyond the range of f16.
pub fn gates(b: &mut Bench) -> Result<(), GpuError> {
    let (height, width) = SHAPE;
    for (activation, size) in
        [(Activation::Gelu, 4096.0), (Activation::Silu, 131_072.0), (Activation::SwigluOai, 8.0)]
    {
        let [gate, up, dy] = [1, 2, 3]
            .map(|seed| values(seed, height * width).iter().map(|x| size * exact(*x)).collect::<Vec<_>>());
        let y_expected = reference::gated::forward(&wide(&gate), &wide(&up), activation);
        let (dgate_expected, dup_expected) =
            reference::gated::backward(&wide(&dy), &wide(&gate), &wide(&up), activation);
        let (gate, up, dy) = (b.input(width, &gate)?, b.input(width, &up)?, b.input(width, &dy)?);
        let [y, dgate, dup] = [room(b, height, width)?, room(b, height, width)?, room(b, height, width)?];
        // Forward rounds gate and up to tiles, which backward replaces by gradients.
        let [gate, up] = [(gate, &dgate), (up, &dup)]
            .map(|(rows, tiles)| Act::tiled(tiles.clone(), None).packed_by_reader(rows.rows().clone()));
        b.run(|rec| {
            gated::forward(rec, &y, &gate, &up, activation, height);
            gated::backward(rec, [&dgate, &dup], dy.rows(), activation, height);
        })?;
        for (name, packed, expected) in
            [("y", &y, y_expected), ("dgate", &dgate, dgate_expected), ("dup", &dup, dup_expected)]
        {
            let rows = unpacked(b, packed, width, height)?;
            b.expect(format!("{activation:?}: {name}"), &rows, expected, F16);
        }
    }
    Ok(())
}

/// Norm and rotary embedding of heads, and back; norms of all heads together, and with their weights behind the rotary embedding.
pub fn heads_both_ways(b: &mut Bench) -> Result<(), GpuError> {
    heads_normed(b)?;
    for of_rows in [true, false] {
        let (tokens, count, size) = (67, 3, 32);
        let width = count * size;
        let normed = if of_rows { width } else { size };
        let (x, w) = (values(1, tokens * width), values(3, normed));
        let positions: Vec<u32> = (0..tokens as u32).map(|t| t % 13).collect();
        let frequencies: Vec<f64> =
            (0..size / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / size as f64)).collect();
        let turned = |x: &[f64]| reference::rope::forward(x, &positions, &frequencies, count);
        let norm_of = |x: &[f64]| reference::rms_norm::forward(x, Some(&wide(&w)), normed, f64::from(EPS));
        let expected = match of_rows {
            true => turned(&norm_of(&wide(&x))),
            false => norm_of(&turned(&wide(&x))),
        };
        let norm = Norm { of_rows, behind_rotation: !of_rows, ..norm(b, &w)? };
        let table = Table::new(b.gpu, &frequencies, 1.0, 13)?;
        let on_device = b.gpu.upload("case", &positions)?;
        let (x, y) = (b.input(width, &x)?, room(b, tokens, width)?);
        let x = x.rows().clone().into();
        b.run(|rec| heads::forward(rec, &y, &x, &norm, Some((&on_device, &table)), count, tokens))?;
        b.gpu.write(y.bind_factors(0).buffer, &vec![1f32; tokens]);
        let y = unpacked(b, &y, width, tokens)?;
        let name = if of_rows { "heads normed together" } else { "weights behind the rotary embedding" };
        b.expect(name, &y, expected.iter().map(|x| f64::from(norm.scale) * x).collect(), F16);
    }
    Ok(())
}

fn heads_normed(b: &mut Bench) -> Result<(), GpuError> {
    let (tokens, count, size) = (67, 3, 32);
    let width = count * size;
    let (x, dy, w) = (values(1, tokens * width), values(2, tokens * width), values(3, size));
    let positions: Vec<u32> = (0..tokens as u32).map(|t| t % 13).collect();
    let frequencies: Vec<f64> = (0..size / 2).map(|i| 1e4f64.powf(-2.0 * i as f64 / size as f64)).collect();
    let (weight, eps) = (wide(&w), f64::from(EPS));
    let normed = reference::rms_norm::forward(&wide(&x), Some(&weight), size, eps);
    let turned = reference::rope::forward(&normed, &positions, &frequencies, count);
    let straight = reference::rope::backward(&wide(&dy), &positions, &frequencies, count);
    let dx_expected = reference::rms_norm::backward(&straight, &wide(&x), Some(&weight), size, eps);
    let (norm, table) = (norm(b, &w)?, Table::new(b.gpu, &frequencies, 1.0, 13)?);
    let positions = b.gpu.upload("case", &positions)?;
    let (x, dy) = (b.input(width, &x)?, b.input(width, &dy)?);
    let (y, dx) = (room(b, tokens, width)?, room(b, tokens, width)?);
    let turn = Some((&positions, &table));
    // Forward rounds its input to tiles, which backward reads.
    let x = Act::tiled(room(b, tokens, width)?, None).packed_by_reader(x.rows().clone());
    b.run(|rec| {
        heads::forward(rec, &y, &x, &norm, turn, count, tokens);
        heads_backward::backward(rec, &dx, dy.rows(), &x, &norm, turn, count, tokens);
    })?;
    // Forward writes no factors, because the scale is the norm's.
    b.gpu.write(y.bind_factors(0).buffer, &vec![1f32; tokens]);
    let (y, dx) = (unpacked(b, &y, width, tokens)?, unpacked(b, &dx, width, tokens)?);
    b.expect("heads", &y, turned.iter().map(|x| f64::from(norm.scale) * x).collect(), F16);
    b.expect("gradients of heads", &dx, dx_expected, F16);
    Ok(())
}

/// Losses and gradients of logits.
pub fn losses(b: &mut Bench) -> Result<(), GpuError> {
    let (rows, vocab) = (7, 1004);
    let logits: Vec<f32> = values(1, rows * vocab).iter().map(|x| 40.0 * x).collect();
    let (ids, factors) = (targets(rows, vocab), values(2, rows));
    let cap = Adjusted { softcap: Some(SOFTCAP.into()), temperature: WARM.into() };
    let losses_expected = reference::cross_entropy::forward(&wide(&logits), &ids, cap, vocab);
    let expected = reference::cross_entropy::backward(&wide(&factors), &wide(&logits), &ids, cap, vocab);
    let (logits, losses) = (b.input(vocab, &logits)?, b.output(8, 1)?);
    let (ids, factors) = (b.gpu.upload("case", &ids)?, b.gpu.upload("case", &factors)?);
    let hidden = b.input(4, &vec![1.0; 4 * rows])?;
    let (status, dlogits) = (b.gpu.buffer("case", 4 * rows as u64)?, room(b, rows, vocab)?);
    let chunk = Chunk {
        logits: logits.rows(),
        rows,
        vocab,
        softcap: Some(SOFTCAP),
        temperature: WARM,
        targets: (&ids, 0),
        losses: (&losses.rows().buffer, 0),
    };
    let verdicts = Verdicts { hidden: hidden.rows(), buffer: (&status, 0) };
    b.run(|rec| cross_entropy::backward(rec, &chunk, &verdicts, &dlogits, &factors))?;
    b.expect_first("losses", &losses, losses_expected.clone(), F32);
    b.gpu.write(&losses.rows().buffer, &vec![f32::NAN; rows]);
    b.run(|rec| cross_entropy::forward(rec, &chunk, &verdicts))?;
    b.expect_first("losses alone", &losses, losses_expected, F32);
    let dlogits = unpacked(b, &dlogits, vocab, rows)?;
    b.expect("gradients of logits", &dlogits, expected, F16);
    Ok(())
}

/// `z = x·Aᵀ`, `u = 0.5·dy·B`, and both gradients.
pub fn adapter(b: &mut Bench) -> Result<(), GpuError> {
    adapter_of(b, 67, 132)
}

/// [`adapter`] over so many tokens that CUDA's kernels compute it.
pub fn adapter_in_cuda(b: &mut Bench) -> Result<(), GpuError> {
    adapter_of(b, FEW + 6, 68)
}

fn adapter_of(b: &mut Bench, tokens: usize, n: usize) -> Result<(), GpuError> {
    // Every other row has a scale of its own.
    let of_row = |(i, value): (usize, f32)| if (i / n).is_multiple_of(2) { value } else { 6.0 * value };
    let x: Vec<f32> = values(1, tokens * n).into_iter().enumerate().map(of_row).collect();
    let (a, up) = (values(2, RANK * n), values(3, n * RANK));
    let (thin, before_a, before_b) = (values(4, tokens * RANK), values(5, RANK * n), values(6, n * RANK));
    let z_expected = reference::linear::forward(&wide(&x), &wide(&a), n);
    let u = reference::linear::backward(&wide(&x), &wide(&up), RANK);
    let product = reference::linear::gradient(&wide(&thin), &wide(&x), RANK, n);
    let da_expected = plus(&wide(&before_a), 1.0, &product);
    let transposed: Vec<f64> = (0..n * RANK).map(|i| product[i % RANK * n + i / RANK]).collect();
    let db_expected = plus(&wide(&before_b), 0.5, &transposed);
    let (x, thin) = (packed(b, &x, n)?, b.input_view(RANK, &thin)?);
    let (a, up) = (b.param(n, &a)?, b.param(RANK, &up)?);
    let (da, db) = (b.param(n, &before_a)?, b.param(RANK, &before_b)?);
    let (together_a, together_b) = (b.param(n, &before_a)?, b.param(RANK, &before_b)?);
    let (z, u_rows) = (b.output_view(RANK, tokens)?, b.output_view(RANK, tokens)?);
    let (thin_z, thin_u) = (room(b, tokens, RANK)?, room(b, tokens, RANK)?);
    b.run(|rec| {
        project(rec, z.view(), &x, &a, tokens, &thin_z);
        project_back(rec, u_rows.view(), &[Member { dy: &x, b: &up, offset: 0 }], 0.5, tokens, &thin_u);
        lora::gradient_a(rec, &da, thin.view(), &x, tokens);
        lora::gradient_b(rec, &db, &x, thin.view(), 0.5, tokens);
        let [of_a, of_b] =
            [&together_a, &together_b].map(|matrix| Gradient { matrix, wide: &x, thin: thin.view() });
        gradients(rec, &[of_b], Some(of_a), 0.5, tokens);
    })?;
    b.expect("z", &z, z_expected, F16);
    b.expect("u", &u_rows, u.iter().map(|u| 0.5 * u).collect(), F16);
    b.expect_param("dA with dB", &together_a, da_expected.clone(), F16);
    b.expect_param("dB with dA", &together_b, db_expected.clone(), F16);
    b.expect_param("dA", &da, da_expected, F16);
    b.expect_param("dB", &db, db_expected, F16);
    Ok(())
}
