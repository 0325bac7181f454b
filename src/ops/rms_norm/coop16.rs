//! [`crate::ops::rms_norm`] and its gradient into operands of products on cooperative matrices, and its gradient onto rows of f32.

use crate::gpu::{Binding, Kernel, Recorder};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::pack::Packed;
use crate::ops::rms_norm::Norm;

/// Rows per workgroup, and threads per row.
pub(in crate::ops) const ROWS: usize = 4;
pub(in crate::ops) const THREADS: usize = 64;

/// Twin of `Params` in shaders/rms_norm/coop16.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    tiles: u32,
    x_tiles: u32,
    width4: u32,
    packed4: u32,
    eps: f32,
    scale: f32,
    parts: u32,
}

/// `y = norm(x)` over `rows` rows, for a norm with weights; every row of `y` is scaled as [`Packed::pack`] does.
pub fn forward(rec: &mut Recorder, y: &Packed, x: &Rows, norm: &Norm, rows: usize) {
    let x = x.clone().into();
    dispatch(rec, "forward", &x, norm, rows, Output::packed(y), &[y.bind(3), y.bind_factors(4)]);
}

/// The gradient of `x`, which may come packed, from `dy`, likewise.
pub fn backward(rec: &mut Recorder, dx: &Packed, dy: &Rows, x: &Act, norm: &Norm, rows: usize) {
    let bindings = [dx.bind(3), dx.bind_factors(4), dy.bind(5)];
    dispatch(rec, "backward", x, norm, rows, Output::packed(dx), &bindings);
}

/// `dx = scale·(dx + (∂norm/∂x)ᵀ·dy)` in f32, for a norm with weights; `x` may come packed. With `parts`, `dy` is their sum: see
/// [`crate::ops::partial_sums::Unsummed`].
pub fn backward_add(
    rec: &mut Recorder,
    dx: &Rows,
    (dy, parts): (&Rows, u32),
    x: &Act,
    norm: &Norm,
    rows: usize,
    scale: f32,
) {
    let dy = match parts {
        0 => dy.bind(5),
        _ => Binding { index: 5, buffer: rec.gpu().partial_sums(), range: None },
    };
    let output = Output { tiles: 0, scale, parts: parts.max(1) };
    dispatch(rec, "backward", x, norm, rows, output, &[dy, dx.bind(6)]);
}

/// Parameters of a kernel that packs its result, or adds it to f32.
struct Output {
    tiles: u32, // stride between columns of matrices; 0: add to f32
    scale: f32, // of what is added
    parts: u32, // of `dy`
}

impl Output {
    fn packed(to: &Packed) -> Output {
        Output { tiles: to.tiles(), scale: 1.0, parts: 1 }
    }
}

fn dispatch(
    rec: &mut Recorder,
    entry: &'static str,
    x: &Act,
    norm: &Norm,
    rows: usize,
    Output { tiles, scale, parts }: Output,
    others: &[Binding],
) {
    let params = Params {
        rows: rows as u32,
        tiles,
        x_tiles: x.tile_stride(),
        width4: (norm.width / 4) as u32,
        packed4: (norm.width.next_multiple_of(64) / 4) as u32,
        eps: norm.eps,
        scale,
        parts,
    };
    let each = (params.packed4 as usize).div_ceil(THREADS) as u32;
    let sizes = [("EACH", each), ("ADDS", u32::from(tiles == 0))];
    let kernel = Kernel::new("rms_norm/coop16", entry).with_sizes(sizes).with_sizes(x.sizes());
    let mut bindings = x.bind(1, 8);
    bindings.push(norm.weights(rec, 2));
    bindings.extend(others);
    let groups = rows.next_multiple_of(16).div_ceil(ROWS) as u32;
    rec.dispatch(kernel, &params, &bindings, [groups, 1, 1]);
}
