//! Rows of a matrix by index, and the way back for distinct indices.

use crate::gpu::{Binding, Kernel, Recorder, grid};
use crate::ops::Rows;
use crate::ops::Weight;

/// Twin of `Params` in shaders/embedding/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    first_row: u32,
    weight_rows: u32,
    weight_cols: u32,
    ids_offset: u32,
    first_col4: u32,
    cols4: u32,
    scale: f32,
}

/// `y[t] = scale·W[ids[ids_offset + t], first_col ..]`, as many columns as `y` is wide. `ids` is u32.
pub fn forward(
    rec: &mut Recorder,
    y: &Rows,
    ids: &wgpu::Buffer,
    ids_offset: usize,
    w: &Weight,
    first_col: usize,
    scale: f32,
    rows: usize,
) {
    for tile in &w.tiles {
        let params = Params {
            rows: rows as u32,
            first_row: tile.first_row as u32,
            weight_rows: tile.rows as u32,
            weight_cols: w.cols as u32,
            ids_offset: ids_offset as u32,
            first_col4: (first_col / 4) as u32,
            cols4: (y.stride / 4) as u32,
            scale,
        };
        let ids = Binding { index: 2, buffer: ids, range: None };
        let kernel = Kernel::new("embedding/plain", "forward").with_format(w.ty.reader());
        rec.dispatch(kernel, &params, &[tile.bind(1), ids, y.bind(3)], grid(rows));
    }
}

/// `dx[ids[ids_offset + t]] = dy[t]`; the ids are distinct, other rows of `dx` keep what they hold.
pub fn backward(
    rec: &mut Recorder,
    dx: &Rows,
    ids: &wgpu::Buffer,
    ids_offset: usize,
    dy: &Rows,
    rows: usize,
) {
    let params = Params {
        rows: rows as u32,
        first_row: 0,
        weight_rows: 0,
        weight_cols: 0,
        ids_offset: ids_offset as u32,
        first_col4: 0,
        cols4: (dy.stride / 4) as u32,
        scale: 1.0,
    };
    let ids = Binding { index: 2, buffer: ids, range: None };
    let kernel = Kernel::new("embedding/plain", "backward").with_format("f32");
    rec.dispatch(kernel, &params, &[ids, dy.bind(4), dx.bind(5)], grid(rows));
}
