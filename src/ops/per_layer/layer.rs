//! The per-layer input of one layer; for training.

use crate::gpu::{Binding, Kernel, Recorder, grid};
use crate::ops::norm::Norm;
use crate::ops::partial_sums;
use crate::ops::rms_norm::plain;
use crate::ops::{Rows, Weight};

/// Twin of `Params` in shaders/per_layer/layer.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    first_row: u32,
    weight_rows: u32,
    weight_cols: u32,
    ids_offset: u32,
    first_col4: u32,
    width4: u32,
    eps: f32,
    root: f32,
    parts: u32,
}

/// The embeddings of tokens for all layers, and which of them the rows of a pass take.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    /// `[tokens, L·P]`.
    pub rows: &'a Weight,
    /// Row of each token, u32.
    pub ids: &'a wgpu::Buffer,
    /// The token of the pass's first row.
    pub first: usize,
}

/// `y = (√P·table[ids] + norm(x))/√2` for `x` `[rows, P]`, with the table's columns of layer `layer`. With `parts`, `x` is their sum: see
/// [`crate::ops::partial_sums::Unsummed`].
pub fn forward(
    rec: &mut Recorder,
    y: &Rows,
    (x, parts): (&Rows, u32),
    norm: &Norm,
    table: Table,
    layer: usize,
    rows: usize,
) {
    let width = norm.width;
    let x = partial_sums::operand(rec, x, parts, 3);
    let ids = Binding { index: 2, buffer: table.ids, range: None };
    let (threads, alone, workgroups) = plain::threads(rec, rows);
    for tile in &table.rows.tiles {
        let params = Params {
            rows: rows as u32,
            first_row: tile.first_row as u32,
            weight_rows: tile.rows as u32,
            weight_cols: table.rows.cols as u32,
            ids_offset: table.first as u32,
            first_col4: (layer * width / 4) as u32,
            width4: (width / 4) as u32,
            eps: norm.eps,
            root: (width as f64).sqrt() as f32,
            parts: parts.max(1),
        };
        let kernel = Kernel::new("per_layer/layer", "forward").with_format(table.rows.ty.reader());
        let kernel = kernel.with_sizes([("THREADS", threads), ("ALONE", alone)]);
        let bindings = [tile.bind(1), ids, x, norm.weights(rec, 4), y.bind(5)];
        rec.dispatch(kernel, &params, &bindings, grid(workgroups));
    }
}
