//! Products of matrices that read one input, with their adapters.

use super::coop_products::Packs;
use super::trainable::{Group, Trainable};
use crate::base::Module;
use crate::gpu::Recorder;
use crate::ops::Rows;
use crate::ops::Weight;
use crate::ops::dropout::{self, Mask};
use crate::ops::heads::coop16::Turn;
use crate::ops::linear::{self, LowRank};
use crate::ops::lora;
use crate::ops::rms_norm::{self, Norm};
use crate::ops::rope;

/// What every product of a pass shares.
pub(super) struct Products<'a> {
    pub adapter: &'a Trainable,
    /// `None` outside training, and where the recipe has none.
    pub dropout: Option<Mask>,
    /// Scratch for masked inputs `[T, widest]`; used with dropout only.
    pub masked: &'a Rows,
    /// Scratch for `u` `[T, Σ R]`.
    pub u: &'a Rows,
    /// Scratch for packed operands, where the device has cooperative matrices.
    pub packs: Option<Packs>,
    /// The token of the first row.
    pub first: usize,
    /// Tokens, `T` or a chunk of them.
    pub rows: usize,
}

/// A frozen matrix, which module it is, and its output or the output's gradient.
pub(super) type Projection<'a> = (Module, &'a Weight, &'a Rows);

impl Products<'_> {
    /// `z = mask(x)·Aᵀ` and every `y = x·Wᵀ + scale·z·Bᵀ`. `z` is kept for the backward.
    pub fn forward(
        &self,
        rec: &mut Recorder,
        group: Option<&Group>,
        z: &Rows,
        x: &Rows,
        outputs: &[Projection],
    ) {
        self.project(rec, group, z, x, outputs[0].1.cols);
        if let Some(packs) = &self.packs {
            return self.coop_forward(rec, packs, group, z, x, outputs);
        }
        for (module, weight, y) in outputs {
            let member = group.and_then(|g| g.members.iter().find(|m| m.module == *module));
            let term = member.map(|m| LowRank {
                z: z.from(m.offset),
                matrix: &m.b.value,
                rank: self.adapter.padded_rank,
                scale: self.adapter.scale,
            });
            linear::forward(rec, y.all(), x.all(), weight, 1.0, term.as_ref(), self.rows);
        }
    }

    /// `z = mask(x)·Aᵀ` alone, for `x` of `cols` columns.
    pub fn project(&self, rec: &mut Recorder, group: Option<&Group>, z: &Rows, x: &Rows, cols: usize) {
        let Some(group) = group else { return };
        let input = self.adapter_input(rec, group, x);
        match &self.packs {
            Some(packs) => {
                packs.project(rec, group, z, &input, cols, self.rows, self.dropout.is_some());
            }
            None => {
                linear::forward(rec, z.all(), input.all(), &group.a.value.as_weight(), 1.0, None, self.rows);
            }
        }
    }

    /// `dB += scale·dyᵀ·z`, `u = scale·dy·B`, `dA += uᵀ·mask(x)` and, where wanted, `dx (+)= dy·W + mask(u·A)`.
    pub fn backward(
        &self,
        rec: &mut Recorder,
        group: Option<&Group>,
        z: &Rows,
        x: &Rows,
        gradients: &[Projection],
        dx: Option<(&Rows, bool)>,
    ) {
        match &self.packs {
            Some(packs) => {
                let input = group.map(|g| self.adapter_input(rec, g, x));
                self.coop_backward(rec, packs, group, z, input.as_ref(), gradients, dx);
            }
            None => self.plain_backward(rec, group, z, x, gradients, dx),
        }
        let Some((dx, _)) = dx else { return };
        if let Some((group, mask)) = group.and_then(|g| Some((g, self.mask(g)?))) {
            let masked = Rows { stride: dx.stride, ..self.masked.clone() };
            let a = group.a.value.as_weight();
            linear::backward(rec, masked.all(), self.u.all(), &a, 1.0, None, self.rows, false);
            dropout::backward(rec, dx, &masked, mask, self.first, self.rows);
        }
    }

    /// Without the masked part of `dx`.
    fn plain_backward(
        &self,
        rec: &mut Recorder,
        group: Option<&Group>,
        z: &Rows,
        x: &Rows,
        gradients: &[Projection],
        dx: Option<(&Rows, bool)>,
    ) {
        if let Some(group) = group {
            for (module, _, dy) in gradients {
                let Some(member) = group.members.iter().find(|m| m.module == *module) else { continue };
                let (scale, b) = (self.adapter.scale, member.b.value.as_weight());
                lora::gradient(rec, &member.b.grad, dy.all(), z.from(member.offset), scale, self.rows);
                linear::backward(
                    rec,
                    self.u.from(member.offset),
                    dy.all(),
                    &b,
                    scale,
                    None,
                    self.rows,
                    false,
                );
            }
            let input = self.adapter_input(rec, group, x);
            lora::gradient(rec, &group.a.grad, self.u.all(), input.all(), 1.0, self.rows);
        }
        let Some((dx, accumulate)) = dx else { return };
        let u_a =
            group.map(|g| LowRank { z: self.u.all(), matrix: &g.a.value, rank: g.a.value.rows, scale: 1.0 });
        let fused = u_a.as_ref().filter(|_| self.dropout.is_none());
        for (i, (_, weight, dy)) in gradients.iter().enumerate() {
            let last = i + 1 == gradients.len();
            let term = fused.filter(|_| last);
            linear::backward(rec, dx.all(), dy.all(), weight, 1.0, term, self.rows, accumulate || i > 0);
        }
    }

    /// The gradient of a norm's input, where nothing but products read it; `scratch` holds it unless it is packed at once.
    pub fn norm_backward<'a>(
        &self,
        rec: &mut Recorder<'a>,
        scratch: &Rows,
        dy: &Rows,
        x: &Rows,
        norm: &'a Norm,
    ) -> Rows {
        if let Some(packs) = &self.packs {
            return packs.norm_backward(rec, scratch, dy, x, norm, self.rows);
        }
        assert!(x.packed.is_none(), "nothing is packed where products read f32");
        rms_norm::backward(rec, scratch, dy, x, norm, self.rows, None);
        scratch.clone()
    }

    /// The gradient of what the norm of heads reads, where nothing but products read it, from `dy`, which is scratch; `scratch`
    /// holds it unless it is packed at once.
    pub fn heads_backward<'a>(
        &self,
        rec: &mut Recorder<'a>,
        scratch: &Rows,
        dy: &Rows,
        x: &Rows,
        norm: &'a Norm,
        (positions, table): Turn<'_>,
        heads: usize,
    ) -> Rows {
        if let Some(packs) = &self.packs {
            return packs.heads_backward(rec, scratch, dy, x, norm, (positions, table), heads, self.rows);
        }
        rope::backward(rec, dy, positions, table, heads, self.rows);
        rms_norm::backward(rec, scratch, dy, x, norm, self.rows * heads, None);
        scratch.clone()
    }

    /// The same in f32 whatever the device has.
    pub fn in_f32(&self) -> Products<'_> {
        Products { packs: None, ..*self }
    }

    /// `y = scale·x·Wᵀ` for a matrix without adapter.
    pub fn frozen(&self, rec: &mut Recorder, y: &Rows, x: &Rows, weight: &Weight, scale: f32) {
        match &self.packs {
            Some(packs) => packs.frozen(rec, y.all(), x, weight, scale, self.rows),
            None => linear::forward(rec, y.all(), x.all(), weight, scale, None, self.rows),
        }
    }

    fn mask(&self, group: &Group) -> Option<Mask> {
        Some(group.mask(self.dropout?))
    }

    fn adapter_input(&self, rec: &mut Recorder, group: &Group, x: &Rows) -> Rows {
        let Some(mask) = self.mask(group) else { return x.clone() };
        let masked = Rows { stride: x.stride, ..self.masked.clone() };
        dropout::forward(rec, &masked, x, mask, self.first, self.rows);
        masked
    }
}
