//! Powers of two that scale rows of f32 before they become f16 operands of [`crate::ops::linear`].

use crate::gpu::{Binding, Kernel, Recorder, grid};
use crate::ops::View;

/// Twin of `Params` in shaders/row_factors/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    cols4: u32,
    x_stride4: u32,
    x_offset4: u32,
}

/// Whether products outside of 16×16 matrices take operands in f16, whose rows need factors.
pub(in crate::ops) fn needed(rec: &Recorder) -> bool {
    rec.gpu().kernels().scales_rows()
}

/// The size of a shader whose operands are f16, else f32.
pub(in crate::ops) fn size(half: bool) -> (&'static str, u32) {
    ("HALF", u32::from(half))
}

/// Leaves in the device's scratch, at binding `index`, for each row of `x` `[rows, cols]` the power of two that undoes the
/// scaling of its largest value into `[½, 1)`.
pub(in crate::ops) fn of<'g>(
    rec: &mut Recorder<'g>,
    index: u32,
    x: View,
    cols: usize,
    rows: usize,
) -> Binding<'g> {
    let buffer = rec.gpu().row_factors();
    assert!(rows as u64 * 4 <= buffer.size(), "{rows} rows have no room in the scratch for factors");
    let params = Params {
        rows: rows as u32,
        cols4: cols.div_ceil(4) as u32,
        x_stride4: x.stride4(),
        x_offset4: x.offset4(),
    };
    let bindings = [x.rows.bind(1), Binding { index: 2, buffer, range: None }];
    rec.dispatch(Kernel::new("row_factors/plain", "row_factors"), &params, &bindings, grid(rows));
    Binding { index, buffer, range: None }
}
