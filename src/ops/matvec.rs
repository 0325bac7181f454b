//! Products of a few rows with a frozen matrix, and with the `A` of an adapter that reads the same rows: for decoding.

use super::{Param, View, Weight};
use crate::gpu::{Kernel, Recorder, grid};
use crate::weights::quant::GgmlType;

/// Most rows that the kernel takes; [`super::linear`] is for more.
pub const MAX_ROWS: usize = 8;

/// Twin of `Params` in shaders/matvec.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    weight_rows: u32,
    weight_cols: u32,
    x_stride4: u32,
    x_offset4: u32,
    y_stride: u32,
    y_offset: u32,
    z_offset: u32,
    a_rows: u32,
    scale: f32,
    softcap: f32,
}

/// An adapter's `A` that reads the same input, and the first column of its `z` in the rows of the result.
pub struct Down<'a> {
    /// `A` `[R, K]`.
    pub a: &'a Param,
    /// First column of `z`.
    pub z_offset: usize,
}

/// `y = scale·x·Wᵀ` for `x` `[rows, K]` from row `first_row` on and `y` `[rows, N]`, capped where there is a `softcap`;
/// and `z = x·Aᵀ` `[rows, R]` beside `y`. At most [`MAX_ROWS`] rows.
pub fn forward(
    rec: &mut Recorder,
    y: View,
    x: View,
    first_row: usize,
    w: &Weight,
    down: Option<&Down>,
    scale: f32,
    softcap: Option<f32>,
    rows: usize,
) {
    assert!((1..=MAX_ROWS).contains(&rows), "one to {MAX_ROWS} rows");
    for (i, tile) in w.tiles.iter().enumerate() {
        let down = down.filter(|_| i == 0);
        let a_rows = down.map_or(0, |d| d.a.rows);
        let params = Params {
            rows: rows as u32,
            weight_rows: tile.rows as u32,
            weight_cols: w.cols as u32,
            x_stride4: x.stride4(),
            x_offset4: x.offset4() + first_row as u32 * x.stride4(),
            y_stride: y.rows.stride as u32,
            y_offset: (y.offset + tile.first_row) as u32,
            z_offset: down.map_or(0, |d| d.z_offset as u32),
            a_rows: a_rows as u32,
            scale,
            softcap: softcap.unwrap_or(0.0),
        };
        let (parts, sliced) =
            (parts(w.cols), !matches!(w.ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16));
        let kernel = Kernel::new("matvec", "forward")
            .with_format(w.ty)
            .with_constant("ROWS", rows.next_power_of_two() as u32)
            .with_constant("PARTS", parts as u32)
            .with_constant("SLICED", u32::from(sliced));
        let a = down.map_or(rec.unused(3), |d| d.a.bind(3));
        let height = THREADS / parts;
        let groups = tile.rows.div_ceil(height) + a_rows.div_ceil(height);
        rec.dispatch(kernel, &params, &[tile.bind(1), x.rows.bind(2), a, y.rows.bind(4)], grid(groups));
    }
}

/// Of a workgroup.
const THREADS: usize = 256;

/// Threads for a row of `cols` columns: as many as its slices of 32 columns keep busy for four fifths of the time.
fn parts(cols: usize) -> usize {
    let slices = cols.div_ceil(32);
    let busy = |parts: &usize| 5 * slices >= 4 * parts * slices.div_ceil(*parts);
    [32, 16].into_iter().find(busy).unwrap_or(8)
}
