//! The adapters of experts in the products.

use crate::gpu::Recorder;
use crate::ops::Param;
use crate::ops::Rows;
use crate::ops::dropout::grouped as expert_dropout;
use crate::ops::dropout::grouped::ExpertMask;
use crate::ops::experts::groups::Groups;
use crate::ops::linear::grouped as expert_linear;
use crate::ops::linear::grouped::{Columns, ExpertWeight, Source};
use crate::ops::linear::grouped_coop16 as coop_expert_linear;
use crate::ops::pack::Packed;
use crate::ops::pack::grouped as expert_pack;

/// The adapters of one matrix of every expert.
#[derive(Clone, Copy)]
pub(in crate::model) struct ExpertLora<'a> {
    pub a: &'a Param,                      // [E·R, K]
    pub b: &'a Param,                      // [E·N, R]
    pub gradients: Option<[&'a Param; 2]>, // of both, where they are trained
    pub rank: usize,                       // R, padded
    pub scale: f32,
    pub mask: Option<ExpertMask>, // of what A reads
}

/// `z = x·A_eᵀ`, or of the masked `x`.
pub(super) fn project(
    rec: &mut Recorder,
    z: &Rows,
    x: Source,
    lora: Option<ExpertLora>,
    groups: &Groups,
    tokens: usize,
) {
    let Some(lora) = lora else { return };
    let (a, z) = (ExpertWeight::of_param(lora.a, groups.experts.count), Columns::all(z.all()));
    match lora.mask {
        Some(mask) => expert_linear::forward_masked(rec, z, x, &a, mask, groups, tokens),
        None => expert_linear::forward(rec, z, x, &a, 1.0, None, groups, tokens),
    }
}

/// The same for packed `x`; `thin` then holds `z`, scaled as `x` is. A mask is for the `plain` one, which is read with a mask only.
pub(super) fn coop_project(
    rec: &mut Recorder,
    z: &Rows,
    [x, thin]: [&Packed; 2],
    plain: Source,
    lora: Option<ExpertLora>,
    groups: &Groups,
    tokens: usize,
) {
    let Some(lora) = lora else { return };
    match lora.mask {
        Some(_) => project(rec, z, plain, Some(lora), groups, tokens),
        None => {
            let a = ExpertWeight::of_param(lora.a, groups.experts.count);
            coop_expert_linear::forward(rec, Columns::all(z.all()), x, &a, 1.0, None, groups, tokens);
        }
    }
    expert_pack::pack_alike(rec, thin, Source::Rows(z.all()), lora.rank, groups, tokens, x);
}

impl<'a> ExpertLora<'a> {
    /// `B` as something to multiply by.
    pub(super) fn b_weight(&self, groups: &Groups) -> ExpertWeight {
        ExpertWeight::of_param(self.b, groups.experts.count)
    }

    /// What is added to a product with rows of `B` from `first_row` on.
    pub(super) fn up(self, z: &'a Rows, first_row: usize) -> expert_linear::LowRank<'a> {
        let ExpertLora { b: matrix, rank, scale, .. } = self;
        expert_linear::LowRank { z: z.all(), matrix, first_row, rank, scale }
    }

    pub(super) fn coop_up(self, z: &'a Packed, first_row: usize) -> coop_expert_linear::LowRank<'a> {
        let ExpertLora { b: matrix, rank, scale, .. } = self;
        coop_expert_linear::LowRank { z, matrix, first_row, rank, scale }
    }

    /// What is added to the gradient of an input within its product; [`masked_back`] adds it where there is a mask.
    pub(super) fn back(self, u: &'a Rows) -> Option<expert_linear::LowRank<'a>> {
        let ExpertLora { a: matrix, rank, mask, .. } = self;
        mask.is_none().then(|| expert_linear::LowRank { z: u.all(), matrix, first_row: 0, rank, scale: 1.0 })
    }

    pub(super) fn coop_back(self, u: &'a Packed) -> Option<coop_expert_linear::LowRank<'a>> {
        let ExpertLora { a: matrix, rank, mask, .. } = self;
        mask.is_none().then_some(coop_expert_linear::LowRank { z: u, matrix, first_row: 0, rank, scale: 1.0 })
    }
}

/// `dx += mask·(u·A_e)`, where there is a mask.
pub(super) fn masked_back(
    rec: &mut Recorder,
    dx: Columns,
    u: &Rows,
    lora: Option<ExpertLora>,
    groups: &Groups,
    tokens: usize,
) {
    if let Some((lora, mask)) = lora.and_then(|l| Some((l, l.mask?))) {
        expert_dropout::backward(rec, dx, u.all(), lora.a, mask, groups, tokens);
    }
}
