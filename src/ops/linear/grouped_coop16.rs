//! The products of [`crate::ops::linear::grouped`] on cooperative matrices of 16×16: f16 operands, each row scaled, and f32 sums.

use crate::gpu::{Kernel, Recorder};
use crate::ops::Param;
use crate::ops::experts::groups::Groups;
use crate::ops::linear::grouped::{Columns, ExpertWeight};
use crate::ops::lora::coop16_gradients;
use crate::ops::pack::Packed;

/// Twin of `Params` in shaders/linear/grouped_coop16.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    weight_rows: u32,
    weight_cols: u32,
    expert_rows: u32,
    first_expert: u32,
    row_tiles: u32,
    x_column: u32,
    y_stride4: u32,
    y_offset4: u32,
    cols4: u32,
    first_column: u32,
    columns: u32,
    ranks: u32,
    scale: f32,
    lora_scale: f32,
    accumulate: u32,
    lora_rows: u32,
    lora_first: u32,
}

/// `scale·z·B_eᵀ` (forward, `matrix` = B `[E·N, R]`) or `z·A_e` (backward, `matrix` = A `[E·R, K]`).
pub struct LowRank<'a> {
    /// z or u, packed with the scaling of the product's operand.
    pub z: &'a Packed,
    /// B or A.
    pub matrix: &'a Param,
    /// Row of every `B_e` that belongs to the first of `W_e`, where `B` holds those of several matrices; forward only.
    pub first_row: usize,
    /// `R`, a multiple of 16.
    pub rank: usize,
    /// The adapter's scale.
    pub scale: f32,
}

/// `y = scale·x·W_eᵀ + lora.scale·z·B_eᵀ` for grouped `x` `[rows, K]`, `y` `[rows, N]`.
pub fn forward(
    rec: &mut Recorder,
    y: Columns,
    x: &Packed,
    w: &ExpertWeight,
    scale: f32,
    lora: Option<&LowRank>,
    groups: &Groups,
    tokens: usize,
) {
    dispatch(rec, "forward", y, (x, 0), w, scale, lora, groups, tokens, false);
}

/// `dx = scale·dy·W_e + u·A_e` for grouped `dy` and `dx` `[rows, K]`; added to `dx` with `accumulate`. The columns of `w` are those of
/// `dy` from `first_column` (a multiple of 16) on.
pub fn backward(
    rec: &mut Recorder,
    dx: Columns,
    (dy, first_column): (&Packed, usize),
    w: &ExpertWeight,
    scale: f32,
    lora: Option<&LowRank>,
    groups: &Groups,
    tokens: usize,
    accumulate: bool,
) {
    dispatch(rec, "backward", dx, (dy, first_column), w, scale, lora, groups, tokens, accumulate);
}

fn dispatch(
    rec: &mut Recorder,
    entry: &'static str,
    to: Columns,
    (x, first_column): (&Packed, usize),
    w: &ExpertWeight,
    scale: f32,
    lora: Option<&LowRank>,
    groups: &Groups,
    tokens: usize,
    accumulate: bool,
) {
    let columns = to.count(if entry == "forward" { w.rows } else { w.weight.cols });
    let y = to.y;
    for tile in &w.weight.tiles {
        let params = Params {
            weight_rows: tile.rows as u32,
            weight_cols: w.weight.cols as u32,
            expert_rows: w.rows as u32,
            first_expert: (tile.first_row / w.rows) as u32,
            row_tiles: (groups.most_rows(tokens) / 16) as u32,
            x_column: (first_column / 16) as u32,
            y_stride4: y.stride4(),
            y_offset4: y.offset4(),
            cols4: columns.div_ceil(4) as u32,
            first_column: to.first as u32,
            columns: columns as u32,
            ranks: lora.map_or(0, |l| (l.rank / 16) as u32),
            scale,
            lora_scale: lora.map_or(0.0, |l| l.scale),
            accumulate: u32::from(accumulate),
            lora_rows: lora.map_or(0, |l| (l.matrix.rows / groups.experts.count) as u32),
            lora_first: lora.map_or(0, |l| l.first_row as u32),
        };
        let z = lora.map_or(rec.unused(4), |l| l.z.bind(4));
        let matrix = lora.map_or(rec.unused(5), |l| l.matrix.bind(5));
        let (result, tiles) = (y.rows.bind(6), groups.tiles.bind(7));
        let bindings = [tile.bind(1), x.bind(2), x.bind_factors(3), z, matrix, result, tiles];
        let workgroups = [columns.div_ceil(128) as u32, groups.most_tiles(tokens) as u32, 1];
        let kernel = Kernel::new("linear/grouped_coop16", entry)
            .with_format(w.weight.ty.reader())
            .with_sizes([("GROUPED", 1), ("HIGH", 2), ("TURNED", 0)])
            .with_sizes(coop16_gradients::sizes(0, false));
        rec.dispatch(kernel, &params, &bindings, workgroups);
    }
}
