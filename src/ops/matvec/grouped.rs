//! Products of a few rows with the experts that each token has chosen, for decoding: [`crate::ops::linear::grouped`] without groups.

use crate::gpu::{Kernel, Recorder};
use crate::ops::Rows;
use crate::ops::View;
use crate::ops::experts::groups::Groups;
use crate::ops::linear::grouped::{ExpertWeight, LowRank, Source};

/// Rows of the result per workgroup.
const HEIGHT: usize = 8;

/// Twin of `Params` in shaders/matvec/grouped.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    weight_rows: u32,
    weight_cols: u32,
    expert_rows: u32,
    first_expert: u32,
    sliced: u32,
    used: u32,
    summed: u32,
    weighted: u32,
    x_stride4: u32,
    x_offset4: u32,
    y_stride: u32,
    y_offset: u32,
    rank: u32,
    z_stride: u32,
    lora_rows: u32,
    lora_first: u32,
    lora_scale: f32,
    accumulate: u32,
}

/// `y = x·W_eᵀ + lora.scale·z·B_eᵀ` with one row per choice, `[tokens·used, N]`; `z` has one row per choice, too.
pub fn each(
    rec: &mut Recorder,
    y: View,
    x: Source,
    w: &ExpertWeight,
    lora: Option<&LowRank>,
    groups: &Groups,
    tokens: usize,
) {
    dispatch(rec, y, x, w, lora, None, groups, tokens);
}

/// Sums the products of a token's choices, each times its weight and its expert's scale in `scales` `[E]`: `y` `[tokens, N]` from `x`
/// `[tokens·used, K]`.
pub fn summed(
    rec: &mut Recorder,
    y: View,
    x: View,
    w: &ExpertWeight,
    lora: Option<&LowRank>,
    scales: &Rows,
    groups: &Groups,
    tokens: usize,
) {
    dispatch(rec, y, Source::Rows(x), w, lora, Some(scales), groups, tokens);
}

fn dispatch(
    rec: &mut Recorder,
    y: View,
    x: Source,
    w: &ExpertWeight,
    lora: Option<&LowRank>,
    scales: Option<&Rows>,
    groups: &Groups,
    tokens: usize,
) {
    let all = groups.experts.used;
    let (x, used) = match x {
        Source::Rows(x) => (x, 0),
        Source::Tokens(x) => (x, all),
    };
    let (summed, rows) = if scales.is_some() { (all, tokens) } else { (1, tokens * all) };
    for (i, tile) in w.weight.tiles.iter().enumerate() {
        let lora = lora.filter(|l| l.rank > 0);
        let params = Params {
            weight_rows: tile.rows as u32,
            weight_cols: w.weight.cols as u32,
            expert_rows: w.rows as u32,
            first_expert: (tile.first_row / w.rows) as u32,
            sliced: u32::from(!w.weight.ty.is_row_by_row()),
            used: used as u32,
            summed: summed as u32,
            weighted: u32::from(scales.is_some()),
            x_stride4: x.stride4(),
            x_offset4: x.offset4(),
            y_stride: y.rows.stride as u32,
            y_offset: y.offset as u32,
            rank: lora.map_or(0, |l| l.rank as u32),
            z_stride: lora.map_or(0, |l| l.z.rows.stride as u32),
            lora_rows: lora.map_or(0, |l| (l.matrix.rows / groups.experts.count) as u32),
            lora_first: lora.map_or(0, |l| l.first_row as u32),
            lora_scale: lora.map_or(0.0, |l| l.scale),
            accumulate: u32::from(i > 0),
        };
        debug_assert!(lora.is_none_or(|l| l.z.offset == 0), "z begins its rows");
        let bindings = [
            tile.bind(1),
            x.rows.bind(2),
            groups.chosen.bind(3),
            groups.weights.bind(4),
            scales.map_or(rec.unused(5), |s| s.bind(5)),
            lora.map_or(rec.unused(6), |l| l.z.rows.bind(6)),
            lora.map_or(rec.unused(7), |l| l.matrix.bind(7)),
            y.rows.bind(8),
        ];
        let kernel = Kernel::new("matvec/grouped", "forward")
            .with_format(w.weight.ty.reader())
            .with_size("WHOLE", super::whole(w.weight.cols));
        rec.dispatch(kernel, &params, &bindings, [w.rows.div_ceil(HEIGHT) as u32, rows as u32, 1]);
    }
}
