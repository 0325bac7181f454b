//! Columns copied between rows.

use super::bench::Bench;
use super::block::POISON;
use super::case::{Case, Needs, Shapes};
use super::inputs::{values, wide};
use super::tolerance::EXACT;
use crate::gpu::GpuError;
use crate::ops::columns::{self, Span};

pub const CASES: [Case; 1] = [Case {
    op: "columns",
    name: "to others and back",
    needs: Needs::Any,
    variants: super::F32,
    shapes: &Shapes::<Shape> {
        small: &[(67, 132, &[[3, 0, 5], [10, 5, 3]])],
        // The last has more values than one dimension of workgroups covers.
        more: &[
            (1, 7, &[[2, 0, 3]]),
            (67, 132, &[[4, 0, 64], [100, 64, 31]]),
            (33_000, 260, &[[0, 0, 256], [259, 256, 1]]),
        ],
        check: copied,
    },
}];

/// Rows, their columns, and spans: first column in whole rows and in parts, and a number of columns.
type Shape = (usize, usize, &'static [[usize; 3]]);

/// Columns of rows side by side, and put back at the same places of others.
fn copied(b: &mut Bench, &(height, width, spans): &Shape) -> Result<(), GpuError> {
    let name = format!("[{height}, {width}] {spans:?}");
    let spans: Vec<Span> = spans.iter().map(|&[whole, part, count]| Span { whole, part, count }).collect();
    let (x, before) = (values(1, height * width), values(2, height * width));
    let (whole, others) = (b.input(width, &x)?, b.in_out(width, &before)?);
    // The columns behind those of the spans stay.
    let count = spans.iter().map(|span| span.count).sum();
    let part = b.in_out(count, &vec![POISON; count * height])?;
    b.run(|rec| {
        columns::take(rec, part.rows(), whole.rows(), &spans, height);
        columns::put(rec, others.rows(), part.rows(), &spans, height);
    })?;
    let of_row = |row: &[f64]| -> Vec<f64> {
        spans.iter().flat_map(|span| row[span.whole..span.whole + span.count].to_vec()).collect()
    };
    let taken: Vec<f64> = wide(&x).chunks(width).flat_map(of_row).collect();
    let mut put = wide(&before);
    for (row, x) in put.chunks_mut(width).zip(wide(&x).chunks(width)) {
        for span in &spans {
            let columns = span.whole..span.whole + span.count;
            row[columns.clone()].copy_from_slice(&x[columns]);
        }
    }
    b.expect(format!("taken {name}"), &part, taken, EXACT);
    b.expect(format!("put {name}"), &others, put, EXACT);
    Ok(())
}
