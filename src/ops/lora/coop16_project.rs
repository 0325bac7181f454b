//! Products with the adapter's thin matrices on cooperative matrices of 16×16. The wide operand is packed, the thin operand is f32. The
//! result is stored in f32 and packed, scaled as the rows of the wide operand: see [`Packed::pack_alike`].

use crate::gpu::{ARRIVALS, Binding, Kernel, PARTIAL_SUMS, Recorder};
use crate::ops::Param;
use crate::ops::View;
use crate::ops::lora::cuda;
use crate::ops::pack::Packed;

/// Steps of the sum that a subgroup stages at a time.
const STEPS: usize = 64;

/// Least rounds of a part. With fewer, adding up the parts costs more than it saves.
const LEAST_ROUNDS: usize = 3;

/// Workgroups of 64 threads that keep a device as busy as one of this kernel.
const WIDE: usize = 16;

/// Rows of matrices from which on a workgroup takes several, so that fewer read the thin matrix.
const MANY_ROWS: usize = 128;

/// Twin of `Params` in shaders/lora/coop16_project.wgsl.
#[repr(C)]
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    thin_cols: u32,
    y_stride: u32,
    packed_tiles: u32,
    scale: f32,
    down: u32,
    parts: u32,
    part_rounds: u32,
    tiles_0: u32,
    cols_0: u32,
    stride4_0: u32,
    y_0: u32,
    packed_0: u32,
    tiles_1: u32,
    cols_1: u32,
    stride4_1: u32,
    y_1: u32,
    packed_1: u32,
}

/// A product of a gradient with a `B`, and where its columns lie in the result.
#[derive(Clone, Copy)]
pub struct Member<'a> {
    /// `dy` `[rows, N]`.
    pub dy: &'a Packed,
    /// `B` `[N, R]`.
    pub b: &'a Param,
    /// First column of `u` and of its packed form, a multiple of 16.
    pub offset: usize,
}

/// `z = x·Aᵀ` for `x` `[rows, K]` and `A` `[Σ R, K]`, in `packed` too.
pub fn project(rec: &mut Recorder, z: View, x: &Packed, a: &Param, rows: usize, packed: &Packed) {
    if cuda::is_worth(rec, rows) {
        return cuda::project(rec, z, x, a, rows, packed);
    }
    let params = Params {
        tiles_0: x.tiles(),
        cols_0: a.cols as u32,
        stride4_0: (a.cols / 4) as u32,
        y_0: z.offset as u32,
        ..params(z, packed, rows, a.rows, 1.0)
    };
    let bindings = [x.bind(5), x.bind_factors(6), a.bind(7)];
    dispatch(rec, "project", 1, params, &bindings, z, packed);
}

/// `u = scale·dy·B` of one member, or of two with the same `R`, in `packed` too.
pub fn project_back(
    rec: &mut Recorder,
    u: View,
    members: &[Member],
    scale: f32,
    rows: usize,
    packed: &Packed,
) {
    if cuda::is_worth(rec, rows) {
        for Member { dy, b, offset } in members {
            cuda::project_back(rec, u, dy, b, *offset, scale, rows, packed);
        }
        return;
    }
    let first = members[0];
    let mut params = Params {
        tiles_0: first.dy.tiles(),
        cols_0: first.b.rows as u32,
        stride4_0: (first.b.cols / 4) as u32,
        y_0: (u.offset + first.offset) as u32,
        packed_0: first.offset as u32,
        ..params(u, packed, rows, first.b.cols, scale)
    };
    let mut bindings = vec![first.dy.bind(5), first.dy.bind_factors(6), first.b.bind(7)];
    let Some(second) = members.get(1) else {
        return dispatch(rec, "project_back", 1, params, &bindings, u, packed);
    };
    params.tiles_1 = second.dy.tiles();
    params.cols_1 = second.b.rows as u32;
    params.stride4_1 = (second.b.cols / 4) as u32;
    params.y_1 = (u.offset + second.offset) as u32;
    params.packed_1 = second.offset as u32;
    bindings.extend([second.dy.bind(8), second.dy.bind_factors(9), second.b.bind(10)]);
    dispatch(rec, "project_back_both", 2, params, &bindings, u, packed);
}

fn params(y: View, packed: &Packed, rows: usize, thin_cols: usize, scale: f32) -> Params {
    Params {
        rows: rows as u32,
        thin_cols: thin_cols as u32,
        y_stride: y.rows.stride as u32,
        packed_tiles: packed.tiles(),
        scale,
        ..Params::default()
    }
}

fn dispatch(
    rec: &mut Recorder,
    entry: &'static str,
    products: usize,
    params: Params,
    bindings: &[Binding],
    y: View,
    packed: &Packed,
) {
    let [matrices, tiles] = [params.thin_cols, params.rows].map(|n| n.div_ceil(16) as usize);
    let across = matrices.div_ceil(3);
    let columns = matrices.div_ceil(across);
    let down = (tiles / MANY_ROWS).clamp(1, if columns == 1 { 4 } else { 2 });
    let down = 1 << down.ilog2();
    let sizes = sizes(columns as u32, down as u32);
    let groups = products * across * tiles.div_ceil(down);

    let fill = rec.gpu().kernels().workgroups_to_fill() / WIDE;
    let steps = (params.cols_0.max(params.cols_1) as usize).div_ceil(STEPS);
    let rounds = steps.div_ceil(sizes[2].1 as usize);
    let room = PARTIAL_SUMS as usize / (1024 * columns * down * groups);
    let most = if groups > ARRIVALS { 1 } else { (fill / groups).min(room).max(1) };
    let part_rounds = rounds.div_ceil(most.min(rounds / LEAST_ROUNDS).max(1));
    let parts = rounds.div_ceil(part_rounds) as u32;
    let params =
        Params { down: tiles.div_ceil(down) as u32, parts, part_rounds: part_rounds as u32, ..params };
    let gpu = rec.gpu();
    let scratch = [(3, gpu.partial_sums()), (4, gpu.arrivals())];
    let scratch = scratch.map(|(index, buffer)| Binding { index, buffer, range: None });
    let bindings = [&[y.rows.bind(1), packed.bind(2)], &scratch[..], bindings].concat();
    let kernel = Kernel::new("lora/coop16_project", entry).with_sizes(sizes);
    rec.dispatch(kernel, &params, &bindings, [across as u32, products as u32 * params.down, parts]);
}

/// The shader's sizes for workgroups of `columns` (at most 3) by `down` matrices; what they stage is at most 32 KiB.
pub fn sizes(columns: u32, down: u32) -> [(&'static str, u32); 5] {
    let subgroups = if columns == 1 { 8 } else { 4 };
    [
        ("COLUMNS", columns),
        ("DOWN", down),
        ("SUBGROUPS", subgroups),
        ("LOADS", 8 * columns),
        ("THREADS", 32 * subgroups),
    ]
}
