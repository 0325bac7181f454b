//! Products of a few rows with frozen matrices, and with the `A` of an adapter that reads the same rows; for decoding.

pub mod grouped;
pub mod integers;

use crate::base::config::Activation;
use crate::base::formats::GgmlType;
use crate::gpu::{Binding, Gpu, Kernel, Recorder, grid};
use crate::ops::Param;
use crate::ops::Rows;
use crate::ops::Tile;
use crate::ops::Unfinished;
use crate::ops::Up;
use crate::ops::View;
use crate::ops::Weight;
use crate::ops::gated::kernels;
use crate::ops::norm::Norm;
use integers::Integers;

/// Maximum number of rows. [`crate::ops::linear`] is for more.
pub const MAX_ROWS: usize = 8;
/// Maximum number of matrices per dispatch.
const MAX_MATRICES: usize = 3;
/// Maximum number of elements of a gated input, over all rows. Each workgroup stores them.
const MAX_GATED: usize = 2048;
/// Most vec4s of an ended input per thread. Each workgroup stores it.
const MAX_SHARES: usize = 3;
/// Most rows of a matrix with an ended input: all of its workgroups read the adapter of `y`.
const MAX_ENDED_ROWS: usize = 512;
/// Most slices of a row that a thread asks for before the kernel ahead has ended: with more, fewer workgroups have room beside those of that
/// kernel.
const MAX_AHEAD: usize = 4;
/// Most vec4s of a row of A, for the same reason.
const MAX_AHEAD_A: usize = 8;
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
    input_z_offset4: u32,
    input_rank4: u32,
    eps: f32,
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
    pub gate: &'a Unfinished<'a>,
    /// `[rows, K]`.
    pub up: View<'a>,
    /// Function of the gate.
    pub activation: Activation,
}

/// An input that is computed on the fly: the stream behind a block, `x = stream + norm(y + B·z)`, as in [`crate::ops::block_end`].
pub struct Ended<'a> {
    /// Row of products that starts with `y` `[K]`, and contains its `z`.
    pub y: &'a Unfinished<'a>,
    /// The norm of `y`.
    pub norm: &'a Norm,
    /// The stream before the block `[K]`.
    pub stream: &'a Rows,
    /// Where `x` is stored too.
    pub after: &'a Rows,
}

/// The input of a product.
enum Input<'a> {
    /// Rows, from one of them on, which may be there as integers too.
    Stored(View<'a>, usize, Option<&'a Integers>),
    Gated(&'a Gated<'a>),
    Ended(&'a Ended<'a>),
}

impl<'a> Input<'a> {
    fn view(&self) -> View<'a> {
        match self {
            Input::Stored(x, ..) => *x,
            Input::Gated(gated) => gated.gate.rows.all(),
            Input::Ended(ended) => ended.y.rows.all(),
        }
    }

    /// First vec4.
    fn offset4(&self) -> u32 {
        match self {
            Input::Stored(x, first_row, _) => x.offset4() + *first_row as u32 * x.stride4(),
            _ => 0,
        }
    }

    /// The adapter whose term is part of the input.
    fn adapter(&self) -> Option<&'a Up<'a>> {
        match self {
            Input::Stored(..) => None,
            Input::Gated(gated) => gated.gate.term.as_ref(),
            Input::Ended(ended) => ended.y.term.as_ref(),
        }
    }

    /// The row in integers.
    fn integers(&self) -> Option<&'a Integers> {
        match self {
            Input::Stored(_, _, integers) => *integers,
            _ => None,
        }
    }

    /// The shader's sizes, for rows of `cols` columns, in a kernel that starts `early` or not.
    fn sizes(&self, cols: usize, early: bool) -> Vec<(&'static str, u32)> {
        // Other inputs have one kernel for rows of all lengths.
        let (gated, shares, most) = match self {
            Input::Stored(..) => (None, 0, 1),
            Input::Gated(gated) => (Some(gated.activation), 0, 4),
            Input::Ended(_) => {
                let shares = cols.div_ceil(4 * THREADS);
                // One that starts early asks for rows of B until the kernel ahead has ended.
                (None, shares, if early { 8 } else { 4 } / shares)
            }
        };
        let deep = self.adapter().map_or(1, |adapter| adapter.deep(most, 1));
        let kind = [("GATED", u32::from(gated.is_some())), ("ENDED", u32::from(shares > 0))];
        let sizes = [("SHARES", shares as u32), ("DEEP", deep)];
        [&kind[..], &sizes, &kernels::sizes(gated.unwrap_or_default())].concat()
    }

    /// Bindings beside that of [`Input::view`].
    fn bindings(&self, rec: &Recorder<'a>) -> Vec<Binding<'a>> {
        let b = || self.adapter().map_or(rec.unused(5), |a| a.bind(5));
        match self {
            Input::Stored(..) => Vec::new(),
            Input::Gated(gated) => vec![gated.up.rows.bind(4), b()],
            Input::Ended(e) => vec![e.stream.bind(4), b(), e.norm.weights(rec, 6), e.after.bind(7)],
        }
    }
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
    let cols = matrix.cols;
    assert!(takes_gated(rows, cols), "{rows} rows of {cols} columns are too many for a gated input");
    product(rec, y, &Input::Gated(x), &[matrix], down, 1.0, None, rows);
}

/// Whether [`forward_ended`] supports `rows` rows, and a matrix of few enough rows that not too many workgroups compute the input.
pub fn takes_ended(rows: usize, norm: &Norm, matrix: &Weight) -> bool {
    let few = matrix.rows <= MAX_ENDED_ROWS && matrix.tiles.len() == 1;
    rows == 1 && few && matrix.cols <= 4 * THREADS * MAX_SHARES && !norm.identity
}

/// [`forward`] of one row with one matrix, and an input that is short enough ([`takes_ended`]) for every workgroup to compute it. Stores the
/// input too.
pub fn forward_ended(rec: &mut Recorder, y: View, x: &Ended, matrix: &Weight, down: Option<&Down>) {
    assert!(takes_ended(1, x.norm, matrix), "the matrix [{}, {}] is too large", matrix.rows, matrix.cols);
    product(rec, y, &Input::Ended(x), &[matrix], down, 1.0, None, 1);
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
    product(rec, y, &Input::Stored(x, first_row, None), matrices, down, scale, softcap, rows);
}

/// [`forward`] of one row that is there as integers, too, for matrices that want these ([`integers::wants`]). Integers round x by at most
/// half of 1/32639 of the largest of 16 values.
pub fn forward_integers(
    rec: &mut Recorder,
    y: View,
    x: View,
    integers: &Integers,
    matrices: &[&Weight],
    down: Option<&Down>,
    softcap: Option<f32>,
) {
    product(rec, y, &Input::Stored(x, 0, Some(integers)), matrices, down, 1.0, softcap, 1);
}

fn product(
    rec: &mut Recorder,
    y: View,
    input: &Input,
    matrices: &[&Weight],
    down: Option<&Down>,
    scale: f32,
    softcap: Option<f32>,
    rows: usize,
) {
    // Longer than 60 lines: one line per parameter of the kernel.
    assert!((1..=MAX_ROWS).contains(&rows), "{rows} rows, expected 1 to {MAX_ROWS}");
    let (x, cols) = (input.view(), matrices[0].cols);
    let tiles: Vec<(GgmlType, &Tile)> =
        matrices.iter().flat_map(|w| w.tiles.iter().map(|tile| (w.ty, tile))).collect();
    let stored = matches!(input, Input::Stored(..));
    let integers = input.integers();
    let (up, eps) = match input {
        Input::Gated(gated) => (Some(gated.up), 0.0),
        Input::Ended(ended) => (None, ended.norm.eps),
        Input::Stored(..) => (None, 0.0),
    };
    let mut y_offset = y.offset;
    for (i, tiles) in tiles.chunks(MAX_MATRICES).enumerate() {
        let down = down.filter(|_| i == 0);
        let tile_rows = |i: usize| tiles.get(i).map_or(0, |(_, tile)| tile.rows as u32);
        let sliced = |ty: GgmlType| !ty.is_row_by_row();
        let fill = rec.gpu().kernels().workgroups_to_fill();
        let alone = stored && integers.is_none() && rec.gpu().kernels().software_lanes().is_some();
        let threads = if alone { THREADS_ALONE } else { THREADS };
        let shared = parts(cols, tiles.iter().map(|(_, tile)| tile.rows).sum(), fill);
        let parts = if alone { 1 } else { shared };
        // On a device that runs many threads at once, each of A's few rows gets as many threads as it has work for.
        let many = (cols / 4).next_power_of_two().clamp(8, THREADS);
        let a_parts = if alone || fill == 0 { parts } else { many };
        let of_a_each = if down.is_some() { (cols / 4).div_ceil(a_parts) } else { 1 };
        let params = Params {
            rows: rows as u32,
            weight_rows_0: tile_rows(0),
            weight_rows_1: tile_rows(1),
            weight_rows_2: tile_rows(2),
            weight_cols: cols as u32,
            sliced: tiles.iter().enumerate().map(|(i, (ty, _))| u32::from(sliced(*ty)) << i).sum(),
            x_stride4: x.stride4(),
            x_offset4: input.offset4(),
            y_stride: y.rows.stride as u32,
            y_offset: y_offset as u32,
            z_offset: down.map_or(0, |d| d.z_offset as u32),
            a_rows: down.map_or(0, |d| d.a.rows as u32),
            a_height: (threads / a_parts) as u32,
            scale,
            softcap: softcap.unwrap_or(0.0),
            up_stride4: up.map_or(0, |up| up.stride4()),
            up_offset4: up.map_or(0, |up| up.offset4()),
            input_z_offset4: input.adapter().map_or(0, |a| a.member(0).0 / 4),
            input_rank4: input.adapter().map_or(0, |a| (a.rank / 4) as u32),
            eps,
        };
        let kernel = Kernel::new("matvec/plain", "forward")
            .with_constant("ROWS", rows.next_power_of_two() as u32)
            .with_constant("PARTS", parts as u32)
            .with_size("SUMS", (rows.next_power_of_two() * THREADS) as u32)
            .with_size("ALONE", u32::from(alone))
            .with_size("WHOLE", whole(cols))
            .with_size("BYTES", u32::from(integers.is_some()))
            .with_sizes(ahead(rec.gpu(), input, cols * rows, [cols.div_ceil(32).div_ceil(parts), of_a_each]))
            .with_sizes(input.sizes(cols, rec.gpu().kernels().starts_early()));
        let reader = |ty: GgmlType| match integers {
            Some(_) => ty.byte_reader().expect("formats without bytes have no integers"),
            None => ty.reader(),
        };
        let kernel = tiles.iter().fold(kernel, |kernel, (ty, _)| kernel.with_format(reader(*ty)));
        let a = down.map_or(rec.unused(2), |d| d.a.bind(2));
        let mut bindings: Vec<Binding> = vec![x.rows.bind(1), a, y.rows.bind(3)];
        bindings.extend(input.bindings(rec));
        bindings.extend(integers.map(|integers| integers.bind(4)));
        bindings.extend((10..).zip(tiles).map(|(index, (_, tile))| tile.bind(index)));
        let groups = |rows: u32| (rows as usize).div_ceil(threads / parts);
        let all = [params.weight_rows_0, params.weight_rows_1, params.weight_rows_2];
        let of_a = (params.a_rows as usize).div_ceil(threads / a_parts);
        let groups = of_a + all.map(groups).into_iter().sum::<usize>();
        rec.dispatch(kernel, &params, &bindings, grid(groups));
        y_offset += tiles.iter().map(|(_, tile)| tile.rows).sum::<usize>();
    }
}

/// The shaders' size `EARLY` of kernels beside these products, for `rows` rows: kernels of more rows do not let the next one start early.
pub(super) fn early(gpu: &Gpu, rows: usize) -> (&'static str, u32) {
    ("EARLY", u32::from(gpu.kernels().starts_early() && rows <= MAX_ROWS))
}

/// The shader's sizes of a kernel that starts early, for an input of `count` values, whose threads have so many slices of a row of a matrix, and
/// vec4s of a row of A.
fn ahead(gpu: &Gpu, input: &Input, count: usize, [slices, of_a]: [usize; 2]) -> [(&'static str, u32); 3] {
    // A thread makes at most one vec4 of a gated input then.
    let fits = !matches!(input, Input::Gated(_)) || count <= 4 * THREADS;
    let [ahead, ahead_a] = match gpu.kernels().starts_early() && fits {
        true => [slices.min(MAX_AHEAD), of_a.min(MAX_AHEAD_A)],
        false => [0, 0],
    };
    [("EARLY", u32::from(ahead > 0)), ("AHEAD", ahead as u32), ("AHEAD_A", ahead_a as u32)]
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
