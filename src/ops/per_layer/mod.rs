//! Per-layer inputs: of one layer for training, of all layers at once for decoding.

pub mod layer;

use crate::gpu::{Kernel, Recorder};
use crate::ops::act::Act;
use crate::ops::norm::Norm;
use crate::ops::pass::Pass;
use crate::ops::{Rows, Weight};
use layer::Table;

/// Twin of `Params` in shaders/per_layer/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    layers: u32,
    width4: u32,
    weight_cols: u32,
    weight_rows: u32,
    eps: f32,
    root: f32,
}

/// `y = (√P·table[ids] + norm(x))/√2` for `x` `[T, P]`, with the table's columns of layer `layer`.
pub fn of_layer(p: &mut Pass, y: &Act, x: &Act, norm: &Norm, table: Table, layer: usize) {
    let x = (x.rows(), p.rec.take_parts(x, p.tokens));
    layer::forward(p.rec.now(), y.rows(), x, norm, table, layer, p.tokens);
}

/// `x = (√P·table + norm(x))/√2` in place for `x` `[rows, L, P]`. `table` holds the tokens' rows of the per-layer embeddings,
/// `[rows, L·P]`.
pub fn forward(rec: &mut Recorder, x: &Rows, table: &Weight, norm: &Norm) {
    let [tile] = &table.tiles[..] else { panic!("the rows of a few tokens are one tile") };
    let (layers, width) = (table.cols / norm.width, norm.width);
    let params = Params {
        layers: layers as u32,
        width4: (width / 4) as u32,
        weight_cols: table.cols as u32,
        weight_rows: table.rows as u32,
        eps: norm.eps,
        root: (width as f64).sqrt() as f32,
    };
    let kernel = Kernel::new("per_layer/plain", "forward").with_format(table.ty.reader());
    rec.dispatch(
        kernel,
        &params,
        &[tile.bind(1), norm.weights(rec, 2), x.bind(3)],
        [layers as u32, table.rows as u32, 1],
    );
}
