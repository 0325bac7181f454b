//! Rows of tables of every format, and rows of activations with their gradients.

use super::bench::Bench;
use super::case::{Case, Needs, Shapes};
use super::inputs::{values, wide, widths};
use super::product::columns;
use super::tolerance::EXACT;
use crate::base::formats::GgmlType;
use crate::gpu::GpuError;
use crate::ops::embedding;
use crate::reference::embedding as reference;

pub const CASES: [Case; 2] = [
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
];

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
