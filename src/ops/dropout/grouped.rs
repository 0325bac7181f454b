//! Inverted dropout of the inputs of experts' adapters. Every choice of an expert has its mask, independent of its row among the groups.

use crate::gpu::{Kernel, Recorder};
use crate::ops::dropout::Mask;
use crate::ops::experts::groups::Groups;
use crate::ops::{Columns, Param, View};

/// A mask over the choices of a pass, `[T·used, K]`.
#[derive(Clone, Copy, Debug)]
pub struct ExpertMask {
    /// Probability and key of the dropout.
    pub mask: Mask,
    /// The token of the pass's first row.
    pub first_token: usize,
}

/// The mask in a kernel's parameters: twin of the fields that shaders/common/expert_mask.wgsl reads. Zeros mean no mask.
#[repr(C)]
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
pub(in crate::ops) struct MaskParams {
    key: u32,
    first: u32,
    stride: u32,
    threshold: u32,
    scale: f32,
}

impl ExpertMask {
    /// The parameters for inputs of `columns` columns.
    pub(in crate::ops) fn params(self, columns: usize, groups: &Groups) -> MaskParams {
        MaskParams {
            key: self.mask.key,
            first: (self.first_token * groups.experts.used) as u32,
            stride: columns.next_multiple_of(4) as u32,
            threshold: self.mask.threshold(),
            scale: self.mask.scale(),
        }
    }
}

/// Twin of `Params` in shaders/dropout/grouped.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rank4: u32,
    u_stride4: u32,
    u_offset4: u32,
    a_cols4: u32,
    first4: u32,
    cols4: u32,
    dx_stride4: u32,
    dx_offset4: u32,
    tile: u32,
    mask: MaskParams,
}

/// Rows per workgroup of shaders/dropout/grouped.wgsl.
const ROWS: usize = 8;

/// `dx += mask·(u·A_e)` for `dx` `[rows, K]`, `u` `[rows, R]` and `a` `[E·R, K]`, in the tiles of a pass over `tokens` tokens.
pub fn backward(
    rec: &mut Recorder,
    dx: Columns,
    u: View,
    a: &Param,
    mask: ExpertMask,
    groups: &Groups,
    tokens: usize,
) {
    let columns = dx.count(a.cols);
    let params = Params {
        rank4: (a.rows / groups.experts.count / 4) as u32,
        u_stride4: u.stride4(),
        u_offset4: u.offset4(),
        a_cols4: (a.cols / 4) as u32,
        first4: (dx.first / 4) as u32,
        cols4: columns.div_ceil(4) as u32,
        dx_stride4: dx.y.stride4(),
        dx_offset4: dx.y.offset4(),
        tile: groups.tile as u32,
        mask: mask.params(a.cols, groups),
    };
    let (tiles, choices) = (groups.tiles.bind(4), groups.choices.bind(5));
    let bindings = [u.rows.bind(1), a.bind(2), dx.y.rows.bind(3), tiles, choices];
    let workgroups = [params.cols4.div_ceil(64), (groups.most_rows(tokens) / ROWS) as u32, 1];
    rec.dispatch(Kernel::new("dropout/grouped", "backward"), &params, &bindings, workgroups);
}
