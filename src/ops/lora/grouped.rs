//! Gradients of the adapters of experts. [`crate::ops::linear::grouped`] has their forward products.

use crate::gpu::{Kernel, Recorder};
use crate::ops::Param;
use crate::ops::Rows;
use crate::ops::dropout::grouped::{ExpertMask, MaskParams};
use crate::ops::experts::groups::Groups;
use crate::ops::linear::grouped::Source;
use crate::ops::pack::Packed;

/// Twin of `Params` in shaders/lora/grouped.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    p_cols: u32,
    p_stride4: u32,
    p_offset4: u32,
    p_used: u32,
    q_cols4: u32,
    q_stride4: u32,
    q_offset4: u32,
    q_used: u32,
    tile: u32,
    row_tiles: u32,
    scale: f32,
    weighted: u32,
    accumulate: u32,
    mask: MaskParams,
}

/// `dW_e += scale·Σ pᵀ·q` over the rows of each expert, for `p` `[rows, N]`, `q` `[rows, M]`, `dW` `[E·N, M]`: `dB` from `dy` and
/// `z`, `dA` from `u` and `x`, which `mask` masks. With `scales` `[E]`, each row counts by the weight of its choice times its expert's
/// scale.
pub fn gradient(
    rec: &mut Recorder,
    dweight: &Param,
    p: Source,
    q: Source,
    mask: Option<ExpertMask>,
    scale: f32,
    scales: Option<&Rows>,
    groups: &Groups,
    tokens: usize,
) {
    let (view, used) = source(p, groups);
    let params = Params {
        p_stride4: view.stride4(),
        p_offset4: view.offset4(),
        p_used: used,
        weighted: u32::from(scales.is_some()),
        mask: mask.map_or_else(MaskParams::default, |mask| mask.params(dweight.cols, groups)),
        ..params(dweight, q, scale, groups, tokens)
    };
    let (q, _) = source(q, groups);
    let bindings = [
        view.rows.bind(1),
        q.rows.bind(2),
        dweight.bind(3),
        groups.firsts.bind(4),
        groups.counts.bind(5),
        groups.choices.bind(6),
        groups.weights.bind(7),
        scales.map_or(rec.unused(8), |scales| scales.bind(8)),
    ];
    let entry = if mask.is_some() { "gradient_masked" } else { "gradient" };
    let kernel = Kernel::new("lora/grouped", entry).with_size("HIGH", 2);
    rec.dispatch(kernel, &params, &bindings, workgroups(&params, groups));
}

/// [`gradient`] for `p` packed as an operand of products on cooperative matrices.
pub fn gradient_packed(
    rec: &mut Recorder,
    dweight: &Param,
    p: &Packed,
    q: Source,
    scale: f32,
    groups: &Groups,
    tokens: usize,
) {
    let params = params(dweight, q, scale, groups, tokens);
    let (q, _) = source(q, groups);
    let bindings = [
        q.rows.bind(2),
        dweight.bind(3),
        groups.firsts.bind(4),
        groups.counts.bind(5),
        groups.choices.bind(6),
        p.bind(9),
        p.bind_factors(10),
    ];
    let kernel = Kernel::new("lora/grouped", "gradient_packed").with_size("HIGH", 2);
    rec.dispatch(kernel, &params, &bindings, workgroups(&params, groups));
}

fn params(dweight: &Param, q: Source, scale: f32, groups: &Groups, tokens: usize) -> Params {
    let (q, q_used) = source(q, groups);
    Params {
        p_cols: (dweight.rows / groups.experts.count) as u32,
        p_stride4: 0,
        p_offset4: 0,
        p_used: 0,
        q_cols4: (dweight.cols / 4) as u32,
        q_stride4: q.stride4(),
        q_offset4: q.offset4(),
        q_used,
        tile: groups.tile as u32,
        row_tiles: (groups.most_rows(tokens) / 16) as u32,
        scale,
        weighted: 0,
        accumulate: 1,
        mask: MaskParams::default(),
    }
}

/// The rows, and the number of choices that share one of them.
fn source<'a>(source: Source<'a>, groups: &Groups) -> (crate::ops::View<'a>, u32) {
    match source {
        Source::Rows(view) => (view, 0),
        Source::Tokens(view) => (view, groups.experts.used as u32),
    }
}

fn workgroups(params: &Params, groups: &Groups) -> [u32; 3] {
    [params.q_cols4.div_ceil(16), params.p_cols.div_ceil(64), groups.experts.count as u32]
}
