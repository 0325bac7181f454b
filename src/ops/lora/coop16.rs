//! Products with the adapter's thin matrices, and their gradients, on cooperative matrices of 16×16. The wide operand is packed, the thin
//! operand is f32.

use crate::gpu::{Kernel, Recorder};
use crate::ops::Param;
use crate::ops::View;
use crate::ops::lora::coop16_sums;
use crate::ops::pack::Packed;
use crate::ops::partial_sums::{self, Target};

/// Steps of the sum that the kernels stage at a time.
const STEPS: usize = 64;

/// Twin of `Params` in shaders/lora/coop16.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    tiles: u32,
    wide_cols: u32,
    thin_cols4: u32,
    thin_stride4: u32,
    thin_offset4: u32,
    y_stride4: u32,
    y_offset4: u32,
    scale: f32,
    part_steps: u32,
    accumulate: u32,
    transposed: u32,
}

/// `z = x·Aᵀ` for `x` `[rows, K]` and `A` `[Σ R, K]`. Stores z in `packed` too, if given, scaled as the rows of `x`.
pub fn project(rec: &mut Recorder, z: View, x: &Packed, a: &Param, rows: usize, packed: Option<&Packed>) {
    let params =
        Params { wide_cols: a.cols as u32, thin_cols4: (a.rows / 4) as u32, ..params(x, a, 1.0, rows) };
    project_with(rec, "project", z, x, a, params, packed);
}

/// `u = scale·dy·B` for `dy` `[rows, N]` and `B` `[N, R]`. Stores u in `packed` too, scaled as the rows of `dy`.
pub fn project_back(
    rec: &mut Recorder,
    u: View,
    dy: &Packed,
    b: &Param,
    scale: f32,
    rows: usize,
    packed: &Packed,
) {
    let params =
        Params { wide_cols: b.rows as u32, thin_cols4: (b.cols / 4) as u32, ..params(dy, b, scale, rows) };
    project_with(rec, "project_back", u, dy, b, params, Some(packed));
}

fn params(wide: &Packed, matrix: &Param, scale: f32, rows: usize) -> Params {
    Params {
        rows: rows as u32,
        tiles: wide.tiles(),
        wide_cols: 0,
        thin_cols4: 0,
        thin_stride4: (matrix.cols / 4) as u32,
        thin_offset4: 0,
        y_stride4: 0,
        y_offset4: 0,
        scale,
        part_steps: 0,
        accumulate: 0,
        transposed: 0,
    }
}

fn project_with(
    rec: &mut Recorder,
    entry: &'static str,
    y: View,
    x: &Packed,
    matrix: &Param,
    params: Params,
    packed: Option<&Packed>,
) {
    let (columns, across) = columns(params.thin_cols4);
    let target = Target {
        y: y.rows.bind(4),
        rows: params.rows,
        cols4: params.thin_cols4,
        stride4: y.stride4(),
        offset4: y.offset4(),
        accumulate: false,
    };
    let down = params.rows.div_ceil(128);
    let steps = (params.wide_cols as usize).div_ceil(STEPS);
    let parts = partial_sums::split_thin_unsummed(rec, &target, across * down, steps, |rec, parts| {
        let params =
            Params { y_stride4: parts.stride4, y_offset4: parts.offset4, part_steps: parts.steps, ..params };
        let bindings = [x.bind(1), x.bind_factors(2), matrix.bind(3), parts.result];
        let kernel = Kernel::new("lora/coop16", entry).with_size("COLUMNS", columns);
        rec.dispatch(kernel, &params, &bindings, [across, down, parts.count]);
    });
    match packed {
        None => partial_sums::sum(rec, &target, parts),
        Some(packed) if parts > 1 => coop16_sums::sum(rec, &target, parts, packed, x),
        Some(packed) => packed.pack_alike(rec, y, 4 * target.cols4 as usize, target.rows as usize, x),
    }
}

/// `dA += uᵀ·x` for `u` `[rows, Σ R]` and `x` `[rows, K]`.
pub fn gradient_a(rec: &mut Recorder, da: &Param, u: View, x: &Packed, rows: usize) {
    gradient(rec, da, u, x, [da.cols, da.rows], 1.0, rows, false);
}

/// `dB += scale·dyᵀ·z` for `dy` `[rows, N]` and `z` `[rows, R]`.
pub fn gradient_b(rec: &mut Recorder, db: &Param, dy: &Packed, z: View, scale: f32, rows: usize) {
    gradient(rec, db, z, dy, [db.rows, db.cols], scale, rows, true);
}

fn gradient(
    rec: &mut Recorder,
    dweight: &Param,
    thin: View,
    wide: &Packed,
    [wide_cols, thin_cols]: [usize; 2],
    scale: f32,
    rows: usize,
    transposed: bool,
) {
    let (columns, down) = columns((thin_cols / 4) as u32);
    let across = wide_cols.div_ceil(256) as u32;
    let target = Target {
        y: dweight.bind(4),
        rows: dweight.rows as u32,
        cols4: (dweight.cols / 4) as u32,
        stride4: (dweight.cols / 4) as u32,
        offset4: 0,
        accumulate: true,
    };
    partial_sums::split_wide(rec, &target, across * down, rows.div_ceil(STEPS), |rec, parts| {
        let params = Params {
            rows: rows as u32,
            tiles: wide.tiles(),
            wide_cols: wide_cols as u32,
            thin_cols4: (thin_cols / 4) as u32,
            thin_stride4: thin.stride4(),
            thin_offset4: thin.offset4(),
            y_stride4: parts.stride4,
            y_offset4: parts.offset4,
            scale,
            part_steps: parts.steps,
            accumulate: parts.accumulate,
            transposed: u32::from(transposed),
        };
        let bindings = [wide.bind(1), wide.bind_factors(2), thin.rows.bind(3), parts.result];
        let kernel = Kernel::new("lora/coop16", "gradient").with_size("COLUMNS", columns);
        rec.dispatch(kernel, &params, &bindings, [across, down, parts.count]);
    });
}

/// Matrices along the thin operand that a workgroup takes, at most four, and the number of workgroups.
fn columns(thin_cols4: u32) -> (u32, u32) {
    let matrices = thin_cols4.div_ceil(4);
    let groups = matrices.div_ceil(4);
    (matrices.div_ceil(groups), groups)
}
