//! Per-layer inputs: a norm beside rows of a table, of all layers or of one.

use super::bench::Bench;
use super::case::{Case, Needs, Once, Shapes};
use super::inputs::{plus, values, wide, widths};
use super::product::columns;
use super::rms_norm::{EPS, norm};
use super::tolerance::SUMS;
use super::weight;
use crate::base::formats::GgmlType;
use crate::gpu::GpuError;
use crate::ops::per_layer::{self, layer};
use crate::reference::rms_norm;

pub const CASES: [Case; 3] = [
    Case {
        op: "per_layer",
        name: "inputs of layers",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Once(both),
    },
    Case {
        op: "per_layer",
        name: "inputs of all layers",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes { small: &[], more: &[(1, 1), (3, 2)], check: of_all },
    },
    Case {
        op: "per_layer",
        name: "inputs of one layer",
        needs: Needs::Any,
        variants: super::EXACT,
        shapes: &Shapes { small: &[], more: &[(1, 1, false), (37, 9, true)], check: of_one },
    },
];

fn both(b: &mut Bench) -> Result<(), GpuError> {
    for ty in [GgmlType::BF16, GgmlType::Q5_0, GgmlType::Q6_K] {
        all_layers(b, ty, columns(ty), (3, 2))?;
        one_layer(b, ty, columns(ty), (3, 3, false))?;
    }
    Ok(())
}

fn of_all(b: &mut Bench, shape: &(usize, usize)) -> Result<(), GpuError> {
    GgmlType::SUPPORTED.into_iter().try_for_each(|ty| all_layers(b, ty, widths(ty)[1], *shape))
}

fn of_one(b: &mut Bench, shape: &(usize, usize, bool)) -> Result<(), GpuError> {
    GgmlType::SUPPORTED.into_iter().try_for_each(|ty| one_layer(b, ty, widths(ty)[1], *shape))
}

/// `(norm(x) + √width·row) / √2`.
fn mixed(x: &[f32], weight: &[f32], rows: &[f64]) -> Vec<f64> {
    let width = weight.len();
    let normed = rms_norm::forward(&wide(x), Some(&wide(weight)), width, f64::from(EPS));
    plus(&normed, (width as f64).sqrt(), rows).iter().map(|x| x / 2f64.sqrt()).collect()
}

/// All layers of every token.
fn all_layers(
    b: &mut Bench,
    ty: GgmlType,
    width: usize,
    (rows, layers): (usize, usize),
) -> Result<(), GpuError> {
    let cols = layers * width;
    let (table, truth) = b.weight(ty, rows, cols)?;
    let (x, weight) = (values(1, rows * cols), values(2, width));
    let (block, norm) = (b.in_out(cols, &x)?, norm(b, &weight)?);
    b.run(|rec| per_layer::forward(rec, block.rows(), &table, &norm))?;
    let name = format!("{} T={rows} L={layers} P={width}", ty.name());
    b.expect(name, &block, mixed(&x, &weight, &truth), SUMS);
    Ok(())
}

/// The second of three layers, for tokens of any order from the second on.
fn one_layer(
    b: &mut Bench,
    ty: GgmlType,
    width: usize,
    (rows, tokens, tiled): (usize, usize, bool),
) -> Result<(), GpuError> {
    let (table, truth) = weight::random(b.gpu, ty, tokens, 3 * width, tiled)?;
    let (x, weight) = (values(1, rows * width), values(2, width));
    let ids: Vec<u32> = (0..=rows).map(|t| (t * 7 % tokens) as u32).collect();
    let of_token = |id: &u32| &truth[(3 * *id as usize + 1) * width..][..width];
    let found: Vec<f64> = ids[1..].iter().flat_map(of_token).copied().collect();
    let (x_block, y) = (b.input(width, &x)?, b.output(width, rows)?);
    let (norm, ids) = (norm(b, &weight)?, b.gpu.upload("case", &ids)?);
    b.run(|rec| {
        let table = layer::Table { rows: &table, ids: &ids, first: 1 };
        layer::forward(rec, y.rows(), (x_block.rows(), 0), &norm, table, 1, rows);
    })?;
    b.expect(format!("{} T={rows} P={width}, one layer", ty.name()), &y, mixed(&x, &weight, &found), SUMS);
    Ok(())
}
