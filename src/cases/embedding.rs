//! Rows of tables of every format, and rows of activations with their gradients.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{part, values, wide, widths};
use super::product::columns;
use super::tolerance::{EXACT, Tolerance};
use super::weight;
use crate::base::formats::GgmlType;
use crate::gpu::GpuError;
use crate::ops::{Weight, embedding};
use crate::reference::embedding as reference;

pub const CASES: [Case; 4] = [
    Case {
        op: "embedding",
        name: "decoders of every format",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes::<Columns> {
            small: &[columns],
            more: &[|ty| widths(ty)[0], |ty| widths(ty)[1], |ty| widths(ty)[2]],
            check: decoders,
        },
    },
    Case {
        op: "embedding",
        name: "rows by number, and back",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes { small: &[(67, 36)], more: &[(1, 4), (7, 20), (130, 252)], check: by_number },
    },
    Case {
        op: "embedding",
        name: "forward",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes { small: &[], more: &[1, 7, 65], check: scaled_rows },
    },
    Case {
        op: "embedding",
        name: "more rows than one dimension of workgroups may have",
        needs: Needs::Any,
        variants: super::F32,
        shapes: &Shapes { small: &[], more: &[70_001], check: many_rows },
    },
];

/// One more rounding, by the factor.
const SCALED: Tolerance = Tolerance::new(1.2e-7, 1.2e-7, 0.0);

/// The number of columns of a table.
type Columns = fn(GgmlType) -> usize;

/// Whole rows with a factor of 1 are exact, scales below the smallest normal f16 included: every product of a scale and a quant fits f32's
/// 24 bits, and one subtraction rounds once.
fn decoders(b: &mut Bench, columns: &Columns) -> Result<(), GpuError> {
    for ty in GgmlType::SUPPORTED {
        let (rows, k) = (130, columns(ty));
        let (weight, truth) = b.weight(ty, rows, k)?;
        let ids = b.gpu.upload("case", &(0..rows as u32).collect::<Vec<_>>())?;
        let y = b.output(k, rows)?;
        b.run(|rec| embedding::forward(rec, y.rows(), &ids, 0, &weight, 0, 1.0, rows))?;
        b.expect(format!("{} K={k}, decoded", ty.name()), &y, truth, EXACT);
    }
    Ok(())
}

/// `y[t] = 7.3·W[ids[3 + t], columns]`, with rows at the ends of tiles and repeated rows.
fn scaled_rows(b: &mut Bench, tokens: &usize) -> Result<(), GpuError> {
    const IDS: [u32; 11] = [9, 9, 199, 0, 63, 64, 127, 128, 191, 192, 64];
    let ids: Vec<u32> = IDS.into_iter().cycle().take(3 + tokens).collect();
    for ty in GgmlType::SUPPORTED {
        let cols = widths(ty)[2];
        let (mut weight, truth) = weight::random(b.gpu, ty, 200, cols, true)?;
        // Each row is in exactly one tile, so that the order of tiles does not matter.
        weight.tiles.rotate_left(1);
        // From the middle of a block to the middle of another, like the slice of one layer.
        for (first, width) in [(0, cols), (4, cols - 12)] {
            look_up(b, &format!("{ty:?}"), (&weight, &truth), &ids, 3, (first, width), 7.3)?;
        }
    }
    Ok(())
}

fn many_rows(b: &mut Bench, rows: &u32) -> Result<(), GpuError> {
    let (weight, truth) = b.weight(GgmlType::F16, 200, 4)?;
    let ids: Vec<u32> = (0..*rows).map(|t| t * 7 % 200).collect();
    look_up(b, "F16", (&weight, &truth), &ids, 0, (0, 4), 2.0)
}

/// Columns of the rows with numbers `ids` from the one at `start` on.
fn look_up(
    b: &mut Bench,
    name: &str,
    (weight, truth): (&Weight, &[f64]),
    ids: &[u32],
    start: usize,
    (first, width): (usize, usize),
    scale: f32,
) -> Result<(), GpuError> {
    let rows = ids.len() - start;
    let (on_device, y) = (b.gpu.upload("case", ids)?, b.output(width, rows)?);
    b.run(|rec| embedding::forward(rec, y.rows(), &on_device, start, weight, first, scale, rows))?;
    let expected =
        reference::forward(&ids[start..], &part(truth, weight.cols, first, width), width, scale.into());
    b.expect(format!("{name} T={rows} columns {first}..{}", first + width), &y, expected, SCALED);
    Ok(())
}

/// Rows of activations gathered by number, as the head does, and their gradients scattered; other rows stay.
fn by_number(b: &mut Bench, &(tokens, width): &(usize, usize)) -> Result<(), GpuError> {
    // Every third row, last row first; the first two ids belong to another chunk.
    let ids: Vec<u32> = (0..tokens as u32).rev().step_by(3).collect();
    let count = ids.len();
    let on_device = b.gpu.upload("case", &[&[0, 0], &ids[..]].concat())?;
    let (x, dy, before) = (values(1, tokens * width), values(2, count * width), values(3, tokens * width));
    let (x_block, dy_block) = (b.input(width, &x)?, b.input(width, &dy)?);
    let (dx, y) = (b.in_out(width, &before)?, b.output(width, count)?);
    b.run(|rec| {
        let table = x_block.rows().as_weight(tokens);
        embedding::forward(rec, y.rows(), &on_device, 2, &table, 0, 1.0, count);
        embedding::backward(rec, dx.rows(), &on_device, 2, dy_block.rows(), count);
    })?;
    let mut scattered = reference::scatter(&wide(&dy), &ids, width, tokens);
    for (row, (expected, before)) in scattered.chunks_mut(width).zip(before.chunks(width)).enumerate() {
        if !ids.contains(&(row as u32)) {
            expected.copy_from_slice(&wide(before));
        }
    }
    b.expect(format!("gathered T={tokens} D={width}"), &y, reference::gather(&wide(&x), &ids, width), EXACT);
    b.expect(format!("scattered T={tokens} D={width}"), &dx, scattered, EXACT);
    Ok(())
}
