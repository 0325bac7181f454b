//! Gradients of an adapter's matrices on cooperative matrices of 16×16: those of `A` and of a `B` in one dispatch, where the rows are few.

use crate::gpu::{Kernel, Recorder};
use crate::ops::Param;
use crate::ops::View;
use crate::ops::lora::coop16;
use crate::ops::pack::Packed;

/// Twin of `Params` in shaders/lora/coop16_gradients.wgsl.
#[repr(C)]
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    scale: f32,
    b_groups: u32,
    b_tiles: u32,
    b_cols: u32,
    b_ranks4: u32,
    b_stride4: u32,
    b_offset4: u32,
    a_tiles: u32,
    a_cols: u32,
    a_ranks4: u32,
    a_stride4: u32,
    a_offset4: u32,
}

/// One gradient, and the operands of its product.
#[derive(Clone, Copy)]
pub struct Gradient<'a> {
    /// `dB` `[N, R]` or `dA` `[Σ R, K]`, to which the product is added.
    pub matrix: &'a Param,
    /// `dy` `[rows, N]` or `x` `[rows, K]`.
    pub wide: &'a Packed,
    /// `z` `[rows, R]` or `u` `[rows, Σ R]`.
    pub thin: View<'a>,
}

/// Most rows whose sum one workgroup makes. With more, the sum in parts is faster, although a second pass adds them up.
pub const FEW: usize = 1024;

/// `dB += scale·dyᵀ·z` and, where `a` is given, `dA += uᵀ·x`.
pub fn gradients(rec: &mut Recorder, b: Gradient, a: Option<Gradient>, scale: f32, rows: usize) {
    if rows > FEW {
        coop16::gradient_b(rec, b.matrix, b.wide, b.thin, scale, rows);
        if let Some(a) = a {
            coop16::gradient_a(rec, a.matrix, a.thin, a.wide, rows);
        }
        return;
    }
    let b_groups = groups(b.matrix.rows, b.matrix.cols);
    let mut params = Params {
        rows: rows as u32,
        scale,
        b_groups,
        b_tiles: b.wide.tiles(),
        b_cols: b.matrix.rows as u32,
        b_ranks4: (b.matrix.cols / 4) as u32,
        b_stride4: b.thin.stride4(),
        b_offset4: b.thin.offset4(),
        ..Params::default()
    };
    let mut bindings = vec![b.wide.bind(1), b.wide.bind_factors(2), b.thin.rows.bind(3), b.matrix.bind(4)];
    let Some(a) = a else {
        return rec.dispatch(Kernel::new(SHADER, "of_b"), &params, &bindings, [b_groups, 1, 1]);
    };
    params.a_tiles = a.wide.tiles();
    params.a_cols = a.matrix.cols as u32;
    params.a_ranks4 = (a.matrix.rows / 4) as u32;
    params.a_stride4 = a.thin.stride4();
    params.a_offset4 = a.thin.offset4();
    bindings.extend([a.wide.bind(5), a.wide.bind_factors(6), a.thin.rows.bind(7), a.matrix.bind(8)]);
    let all = b_groups + groups(a.matrix.cols, a.matrix.rows);
    rec.dispatch(Kernel::new(SHADER, "both"), &params, &bindings, [all, 1, 1]);
}

const SHADER: &str = "lora/coop16_gradients";

/// Workgroups of a gradient: each makes 64 by 16 values.
fn groups(wide: usize, thin: usize) -> u32 {
    (wide.div_ceil(64) * thin.div_ceil(16)) as u32
}
