//! Products of one input side by side in one row, with a frozen adapter: for decoding long prompts.

use super::{coop16, operand, tiled};
use crate::ops::lora::coop16_project;
use crate::ops::pass::{Operands, Pass};
use crate::ops::{Param, Rows, Weight};

/// The adapters of the matrices that read one input; those that an adapter leaves alone have zeros.
#[derive(Clone, Copy)]
pub struct Applied<'a> {
    /// `A` of every matrix below each other, `[Σ R, K]`.
    pub a: &'a Param,
    /// `B` of every matrix `[N, R]`, with the scale in it.
    pub b: &'a [Param],
    /// Rank `R`, padded to what the kernels take.
    pub rank: usize,
}

/// `y = (x·W_0ᵀ + z_0·B_0ᵀ, x·W_1ᵀ + z_1·B_1ᵀ, …)` with `z = x·Aᵀ`, which is scratch.
pub fn forward(p: &mut Pass, y: &Rows, x: &Rows, matrices: &[&Weight], adapter: Option<Applied>, z: &Rows) {
    match p.operands() {
        Some(scratch) => on_matrices(p, &scratch, y, x, matrices, adapter, z),
        None => in_rows(p, y, x, matrices, adapter, z),
    }
}

fn in_rows(p: &mut Pass, y: &Rows, x: &Rows, matrices: &[&Weight], adapter: Option<Applied>, z: &Rows) {
    if let Some(adapter) = adapter {
        tiled::forward(p.rec.now(), z.all(), x.all(), &adapter.a.as_weight(), 1.0, None, p.tokens);
    }
    let mut column = 0;
    for (i, matrix) in matrices.iter().enumerate() {
        let term = adapter.map(|adapter| {
            let rank = adapter.rank;
            tiled::LowRank { z: z.from(i * rank), matrix: &adapter.b[i], rank, scale: 1.0 }
        });
        tiled::forward(p.rec.now(), y.from(column), x.all(), matrix, 1.0, term.as_ref(), p.tokens);
        column += matrix.rows;
    }
}

fn on_matrices(
    p: &mut Pass,
    scratch: &Operands,
    y: &Rows,
    x: &Rows,
    matrices: &[&Weight],
    adapter: Option<Applied>,
    z: &Rows,
) {
    let x = x.clone().into();
    let x = operand(p.rec.now(), &scratch.x, &x, matrices[0].cols, p.tokens);
    if let Some(adapter) = adapter {
        coop16_project::project(p.rec.now(), z.all(), x, adapter.a, p.tokens, &scratch.thin);
    }
    let mut column = 0;
    for (i, matrix) in matrices.iter().enumerate() {
        let term = adapter.map(|adapter| coop16::LowRank {
            z: &scratch.thin,
            z_offset: i * adapter.rank,
            matrix: &adapter.b[i],
            first_row: 0,
            rank: adapter.rank,
            scale: 1.0,
        });
        coop16::forward(p.rec.now(), y.from(column), x, matrix, 1.0, term.as_ref(), p.tokens);
        column += matrix.rows;
    }
}
