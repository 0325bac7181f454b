//! Gradients of the adapter's matrices on cooperative matrices of 16×16, with sums in parts. The wide operand is packed, the thin operand
//! is f32.

use crate::gpu::{Kernel, Recorder};
use crate::ops::Param;
use crate::ops::View;
use crate::ops::lora::{FEW, cuda};
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
    if rows > FEW && cuda::is_worth(rec, rows) {
        return cuda::gradient(rec, dweight, thin, wide, [wide_cols, thin_cols], scale, rows, transposed);
    }
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
    let steps = rows.div_ceil(STEPS);
    let wanted = partial_sums::usual_parts(rec.gpu(), across * down, steps, partial_sums::WIDE);
    partial_sums::split(rec, &target, wanted, steps, |rec, parts| {
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
