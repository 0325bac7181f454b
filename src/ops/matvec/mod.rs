//! Products of a few rows with frozen matrices, and with the `A` of an adapter that reads the same rows; for decoding.

pub mod grouped;

use crate::base::config::Activation;
use crate::base::formats::GgmlType;
use crate::gpu::{Binding, Kernel, Recorder, grid};
use crate::ops::Param;
use crate::ops::Rows;
use crate::ops::Tile;
use crate::ops::Up;
use crate::ops::View;
use crate::ops::Weight;
use crate::ops::gated::sizes;
use crate::ops::op;

/// Maximum number of rows. [`crate::ops::linear`] is for more.
pub const MAX_ROWS: usize = 8;
/// Maximum number of matrices per dispatch.
const MAX_MATRICES: usize = 3;
/// Maximum number of elements of a gated input, over all rows. Each workgroup stores them.
const MAX_GATED: usize = 2048;
/// Threads of a workgroup.
const THREADS: usize = 256;
/// Threads of a workgroup that each take a whole row.
const THREADS_ALONE: usize = 32;

/// Twin of `Params` in shaders/matvec/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    weight_rows_0: u32,
    weight_rows_1: u32,
    weight_rows_2: u32,
    weight_cols: u32,
    sliced: u32,
    x_stride4: u32,
    x_offset4: u32,
    y_stride: u32,
    y_offset: u32,
    z_offset: u32,
    a_rows: u32,
    a_height: u32,
    scale: f32,
    softcap: f32,
    up_stride4: u32,
    up_offset4: u32,
    gate_z_offset4: u32,
    gate_rank4: u32,
}

/// The `A` of an adapter that reads the same input, and the first column of its `z` in the rows of the result.
pub struct Down<'a> {
    /// `A` `[R, K]`.
    pub a: &'a Param,
    /// First column of `z`.
    pub z_offset: usize,
}

/// An input that is computed on the fly: `x = activation(gate + B·z)·up`, as in [`crate::ops::cached_gated`].
pub struct Gated<'a> {
    /// Rows of products that start with the gate, `[rows, K]`, and contain its `z`.
    pub gate: &'a Rows,
    /// `[rows, K]`.
    pub up: View<'a>,
    /// The gate's adapter.
    pub adapter: Option<Up<'a>>,
    /// Function of the gate.
    pub activation: Activation,
}

/// Whether [`forward_gated`] supports `rows` rows of `cols` columns.
pub fn takes_gated(rows: usize, cols: usize) -> bool {
    rows <= MAX_ROWS && rows * cols <= MAX_GATED
}

/// [`forward`] with one matrix, and an input that is short enough ([`takes_gated`]) for every workgroup to compute it.
pub fn forward_gated(
    rec: &mut Recorder,
    y: View,
    x: &Gated,
    matrix: &Weight,
    down: Option<&Down>,
    rows: usize,
) {
    assert!(
        takes_gated(rows, matrix.cols),
        "{rows} rows of {} columns are too many for a gated input",
        matrix.cols
    );
    product(rec, y, x.gate.all(), Some(x), 0, &[matrix], down, 1.0, None, rows);
}

/// `y = scale·x·Wᵀ` for `x` `[rows, K]` from row `first_row` on and `y` `[rows, Σ N]`, the results of all `matrices` side by
/// side, with the softcap if there is one; and `z = x·Aᵀ` `[rows, R]` in the same rows. At most [`MAX_ROWS`] rows.
pub fn forward(
    rec: &mut Recorder,
    y: View,
    x: View,
    first_row: usize,
    matrices: &[&Weight],
    down: Option<&Down>,
    scale: f32,
    softcap: Option<f32>,
    rows: usize,
) {
    product(rec, y, x, None, first_row, matrices, down, scale, softcap, rows);
}

fn product(
    rec: &mut Recorder,
    y: View,
    x: View,
    gated: Option<&Gated>,
    first_row: usize,
    matrices: &[&Weight],
    down: Option<&Down>,
    scale: f32,
    softcap: Option<f32>,
    rows: usize,
) {
    // Longer than 60 lines: one line per parameter of the kernel.
    assert!((1..=MAX_ROWS).contains(&rows), "{rows} rows, expected 1 to {MAX_ROWS}");
    let cols = matrices[0].cols;
    let tiles: Vec<(GgmlType, &Tile)> =
        matrices.iter().flat_map(|w| w.tiles.iter().map(|tile| (w.ty, tile))).collect();
    let adapter = gated.and_then(|g| g.adapter.as_ref());
    let mut y_offset = y.offset;
    for (i, tiles) in tiles.chunks(MAX_MATRICES).enumerate() {
        let down = down.filter(|_| i == 0);
        let tile_rows = |i: usize| tiles.get(i).map_or(0, |(_, tile)| tile.rows as u32);
        let sliced = |ty: GgmlType| !ty.is_row_by_row();
        let fill = rec.gpu().kernels().workgroups_to_fill();
        let alone = gated.is_none() && rec.gpu().kernels().software_lanes().is_some();
        let threads = if alone { THREADS_ALONE } else { THREADS };
        let shared = parts(cols, tiles.iter().map(|(_, tile)| tile.rows).sum(), fill);
        let parts = if alone { 1 } else { shared };
        // On a device that runs many threads at once, each of A's few rows gets as many threads as it has work for.
        let many = (cols / 4).next_power_of_two().clamp(8, THREADS);
        let a_parts = if alone || fill == 0 { parts } else { many };
        let params = Params {
            rows: rows as u32,
            weight_rows_0: tile_rows(0),
            weight_rows_1: tile_rows(1),
            weight_rows_2: tile_rows(2),
            weight_cols: cols as u32,
            sliced: tiles.iter().enumerate().map(|(i, (ty, _))| u32::from(sliced(*ty)) << i).sum(),
            x_stride4: x.stride4(),
            x_offset4: x.offset4() + first_row as u32 * x.stride4(),
            y_stride: y.rows.stride as u32,
            y_offset: y_offset as u32,
            z_offset: down.map_or(0, |d| d.z_offset as u32),
            a_rows: down.map_or(0, |d| d.a.rows as u32),
            a_height: (threads / a_parts) as u32,
            scale,
            softcap: softcap.unwrap_or(0.0),
            up_stride4: gated.map_or(0, |g| g.up.stride4()),
            up_offset4: gated.map_or(0, |g| g.up.offset4()),
            gate_z_offset4: adapter.map_or(0, |a| a.member(0).0 / 4),
            gate_rank4: adapter.map_or(0, |a| (a.rank / 4) as u32),
        };
        let kernel = Kernel::new("matvec/plain", "forward")
            .with_constant("ROWS", rows.next_power_of_two() as u32)
            .with_constant("PARTS", parts as u32)
            .with_size("ALONE", u32::from(alone))
            .with_size("GATED", u32::from(gated.is_some()))
            .with_size("WHOLE", whole(cols))
            .with_size("DEEP", adapter.map_or(1, |a| a.deep(4, 1)))
            .with_sizes(sizes(gated.map_or(Activation::default(), |g| g.activation)));
        let kernel = tiles.iter().fold(kernel, |kernel, (ty, _)| kernel.with_format(op::reader(*ty)));
        let a = down.map_or(rec.unused(2), |d| d.a.bind(2));
        let mut bindings: Vec<Binding> = vec![x.rows.bind(1), a, y.rows.bind(3)];
        if let Some(gated) = gated {
            bindings.extend([gated.up.rows.bind(4), adapter.map_or(rec.unused(5), |a| a.bind(5))]);
        }
        bindings.extend((10..).zip(tiles).map(|(index, (_, tile))| tile.bind(index)));
        let groups = |rows: u32| (rows as usize).div_ceil(threads / parts);
        let all = [params.weight_rows_0, params.weight_rows_1, params.weight_rows_2];
        let of_a = (params.a_rows as usize).div_ceil(threads / a_parts);
        let groups = of_a + all.map(groups).into_iter().sum::<usize>();
        rec.dispatch(kernel, &params, &bindings, grid(groups));
        y_offset += tiles.iter().map(|(_, tile)| tile.rows).sum::<usize>();
    }
}

/// The shaders' size `WHOLE` for rows of `cols` columns.
fn whole(cols: usize) -> u32 {
    u32::from(cols.is_multiple_of(32))
}

/// Threads for each of `rows` rows of `cols` columns: as many as a row's slices of 32 columns keep busy for four fifths of the
/// time. Few rows would leave a device idle that runs `workgroups_to_fill` workgroups of 64 threads at once. Then more threads
/// share a row: as many as are busy for three quarters of the time and as the device runs at once, but a workgroup must keep at
/// least four neighbouring rows, because these are adjacent in memory.
fn parts(cols: usize, rows: usize, workgroups_to_fill: usize) -> usize {
    let slices = cols.div_ceil(32);
    let rounds = |parts: usize| parts * slices.div_ceil(parts);
    let spare = |parts: &usize| 4 * slices >= 3 * rounds(*parts) && rows * parts <= 64 * workgroups_to_fill;
    let busy = |parts: &usize| 5 * slices >= 4 * rounds(*parts);
    let more = [64, 32].into_iter().find(spare);
    more.or([32, 16].into_iter().find(busy)).unwrap_or(8)
}
