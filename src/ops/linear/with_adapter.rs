//! Products of one input with a frozen adapter: for decoding.

use super::{coop16, operand, tiled};
use crate::ops::lora::coop16_project;
use crate::ops::pass::{Operands, Pass};
use crate::ops::{Param, Rows, View, Weight};

/// The adapters of the matrices that read one input; those that an adapter leaves alone have zeros.
#[derive(Clone)]
pub struct Applied {
    /// `A` of every matrix below each other, `[Σ R, K]`.
    pub a: Param,
    /// `B` of every matrix `[N, R]`, with the scale in it; used by long passes.
    pub b: Vec<Param>,
    /// `Bᵀ` of every matrix `[R, N]`; used by passes of a few tokens. Empty for experts.
    pub transposed: wgpu::Buffer,
    /// First float of each matrix in either buffer.
    pub offsets: Vec<usize>,
    /// Rank `R`, padded to a multiple of 4, or of 16 for cooperative matrices.
    pub rank: usize,
}

impl Applied {
    /// The adapter of matrix `i` alone.
    pub fn member(&self, i: usize) -> Applied {
        let (a, b) = (self.a.part(i * self.rank, self.rank), vec![self.b[i].clone()]);
        Applied { a, b, transposed: self.transposed.clone(), offsets: vec![self.offsets[i]], ..*self }
    }
}

/// `y_i = x·W_iᵀ + z_i·B_iᵀ` with `z = x·Aᵀ`, which is scratch.
pub fn forward(p: &mut Pass, outputs: &[(&Weight, View)], x: &Rows, adapter: Option<&Applied>, z: &Rows) {
    match p.operands() {
        Some(scratch) => on_matrices(p, &scratch, outputs, x, adapter, z),
        None => in_rows(p, outputs, x, adapter, z),
    }
}

/// [`forward`] by the kernels for f32 rows on every device.
pub fn in_rows(p: &mut Pass, outputs: &[(&Weight, View)], x: &Rows, adapter: Option<&Applied>, z: &Rows) {
    if let Some(adapter) = adapter {
        tiled::forward(p.rec.now(), z.all(), x.all(), &adapter.a.as_weight(), 1.0, None, p.tokens);
    }
    for (i, (matrix, y)) in outputs.iter().enumerate() {
        let term = adapter.map(|adapter| {
            let rank = adapter.rank;
            tiled::LowRank { z: z.from(i * rank), matrix: &adapter.b[i], rank, scale: 1.0 }
        });
        tiled::forward(p.rec.now(), *y, x.all(), matrix, 1.0, term.as_ref(), p.tokens);
    }
}

fn on_matrices(
    p: &mut Pass,
    scratch: &Operands,
    outputs: &[(&Weight, View)],
    x: &Rows,
    adapter: Option<&Applied>,
    z: &Rows,
) {
    let x = x.clone().into();
    let x = operand(p.rec.now(), &scratch.x, &x, outputs[0].0.cols, p.tokens);
    if let Some(adapter) = adapter {
        coop16_project::project(p.rec.now(), z.all(), x, &adapter.a, p.tokens, &scratch.thin);
    }
    for (i, (matrix, y)) in outputs.iter().enumerate() {
        let term = adapter.map(|adapter| coop16::LowRank {
            z: &scratch.thin,
            z_offset: i * adapter.rank,
            matrix: &adapter.b[i],
            first_row: 0,
            rank: adapter.rank,
            scale: 1.0,
        });
        coop16::forward(p.rec.now(), *y, x, matrix, 1.0, term.as_ref(), p.tokens);
    }
}
