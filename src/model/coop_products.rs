//! The products of [`super::products`] on cooperative matrices: every operand is packed first.

use super::products::{Products, Projection};
use super::trainable::{Group, Member};
use crate::base::Module;
use crate::gpu::{Gpu, GpuError, Recorder};
use crate::ops::Rows;
use crate::ops::View;
use crate::ops::Weight;
use crate::ops::cross_entropy::Chunk;
use crate::ops::cross_entropy::coop16 as coop_cross_entropy;
use crate::ops::heads::coop16::Turn;
use crate::ops::heads::coop16_backward as coop_heads_backward;
use crate::ops::linear::coop16 as coop_linear;
use crate::ops::linear::coop16::LowRank;
use crate::ops::lora::coop16 as coop_lora;
use crate::ops::pack::{Packed, packed_bytes};
use crate::ops::rms_norm::Norm;
use crate::ops::rms_norm::coop16 as coop_norm;
use crate::ops::row_status as verdict;
use crate::ops::row_status::Verdicts;

/// Scratch for packed operands.
#[derive(Clone)]
pub(super) struct Packs {
    x: Packed,    // [T, widest], or a chunk of the tokens in wider rows
    dy: Packed,   // the same
    thin: Packed, // z or u [T, Σ R]
}

impl Packs {
    /// For `rows` tokens of `widest` columns, adapters of `thin` columns.
    pub fn new(gpu: &Gpu, rows: usize, widest: usize, thin: usize) -> Result<Packs, GpuError> {
        Ok(Packs {
            x: Packed::new(gpu, "packed input", rows, widest)?,
            dy: Packed::new(gpu, "packed gradient", rows, widest)?,
            thin: Packed::new(gpu, "packed z", rows, thin)?,
        })
    }

    /// For inputs of `input` columns and gradients of `gradient` columns, without adapters.
    pub fn new_head(gpu: &Gpu, rows: usize, input: usize, gradient: usize) -> Result<Packs, GpuError> {
        Ok(Packs {
            x: Packed::new(gpu, "packed head input", rows, input)?,
            dy: Packed::new(gpu, "packed dlogits", rows, gradient)?,
            thin: Packed::new(gpu, "no z", 1, 0)?,
        })
    }

    /// The same memory for `rows` tokens.
    pub fn for_rows(&self, rows: usize) -> Packs {
        Packs { x: self.x.for_rows(rows), dy: self.dy.for_rows(rows), thin: self.thin.for_rows(rows) }
    }

    /// What [`Packs::new`] takes.
    pub fn bytes(rows: usize, widest: usize, thin: usize) -> u64 {
        2 * packed_bytes(rows, widest) + packed_bytes(rows, thin) + 12 * rows as u64
    }

    /// `z = x·Aᵀ`; `x` stays packed in `self.x`, unless it came so, and `z` in `self.thin`, unless `x` is `masked`: then products
    /// read another.
    pub fn project(
        &self,
        rec: &mut Recorder,
        group: &Group,
        z: &Rows,
        x: &Rows,
        cols: usize,
        rows: usize,
        masked: bool,
    ) {
        let operand = operand(rec, &self.x, x, cols, rows);
        coop_lora::project(rec, z.all(), operand, &group.a.value, rows, (!masked).then_some(&self.thin));
    }

    /// [`crate::ops::rms_norm::backward`] for a gradient that nothing but products read: `dx` as it stays in `self.dy`.
    pub fn norm_backward<'a>(
        &self,
        rec: &mut Recorder<'a>,
        dx: &Rows,
        dy: &Rows,
        x: &Rows,
        norm: &'a Norm,
        rows: usize,
    ) -> Rows {
        coop_norm::backward(rec, &self.dy, dy, x, norm, rows);
        Rows { packed: Some(self.dy.clone()), ..dx.clone() }
    }

    /// The same for the norm and the rotary embedding of heads.
    pub fn heads_backward<'a>(
        &self,
        rec: &mut Recorder<'a>,
        dx: &Rows,
        dy: &Rows,
        x: &Rows,
        norm: &'a Norm,
        turn: Turn,
        heads: usize,
        rows: usize,
    ) -> Rows {
        coop_heads_backward::backward(rec, &self.dy, dy, x, norm, Some(turn), heads, rows);
        Rows { packed: Some(self.dy.clone()), ..dx.clone() }
    }

    /// `y = scale·x·Wᵀ`.
    pub fn frozen(&self, rec: &mut Recorder, y: View, x: &Rows, w: &Weight, scale: f32, rows: usize) {
        let x = operand(rec, &self.x, x, w.cols, rows);
        coop_linear::forward(rec, y, x, w, scale, None, rows);
    }

    /// Losses and verdicts of a chunk, and `dx = dlogits·W`; the logits are not kept.
    pub fn head_backward(
        &self,
        rec: &mut Recorder,
        dx: View,
        chunk: &Chunk,
        verdicts: &Verdicts,
        w: &Weight,
        coefficients: &wgpu::Buffer,
    ) {
        if coop_cross_entropy::supports(chunk.vocab) {
            coop_cross_entropy::backward(rec, chunk, verdicts, &self.dy, coefficients);
        } else {
            verdict::rows(rec, chunk, verdicts);
            chunk.backward(rec, coefficients);
            self.dy.pack(rec, chunk.logits.all(), w.rows, chunk.rows);
        }
        coop_linear::backward(rec, dx, &self.dy, w, 1.0, None, chunk.rows, false);
    }
}

/// `x` `[rows, cols]` as it is kept packed, or packed into `scratch`.
fn operand<'a>(rec: &mut Recorder, scratch: &'a Packed, x: &'a Rows, cols: usize, rows: usize) -> &'a Packed {
    if let Some(packed) = &x.packed {
        return packed;
    }
    scratch.pack(rec, x.all(), cols, rows);
    scratch
}

fn member(group: Option<&Group>, module: Module) -> Option<&Member> {
    group?.members.iter().find(|m| m.module == module)
}

impl Products<'_> {
    /// [`Products::forward`] behind the projection.
    pub(super) fn coop_forward(
        &self,
        rec: &mut Recorder,
        packs: &Packs,
        group: Option<&Group>,
        z: &Rows,
        x: &Rows,
        outputs: &[Projection],
    ) {
        let (rank, rows) = (self.adapter.padded_rank, self.rows);
        let cols = outputs[0].1.cols;
        let masked = self.dropout.is_some() && group.is_some();
        let x = match &x.packed {
            None if group.is_some() && !masked => &packs.x, // packed by the projection
            _ => operand(rec, &packs.x, x, cols, rows),
        };
        if let Some(group) = group.filter(|_| masked) {
            packs.thin.pack_alike(rec, z.all(), group.a.value.rows, rows, x);
        }
        for (module, weight, y) in outputs {
            let term = member(group, *module).map(|m| LowRank {
                z: &packs.thin,
                z_offset: m.offset,
                matrix: &m.b.value,
                first_row: 0,
                rank,
                scale: self.adapter.scale,
            });
            coop_linear::forward(rec, y.all(), x, weight, 1.0, term.as_ref(), rows);
        }
    }

    /// [`Products::backward`] without the masked part of `dx`.
    pub(super) fn coop_backward(
        &self,
        rec: &mut Recorder,
        packs: &Packs,
        group: Option<&Group>,
        z: &Rows,
        input: Option<&Rows>,
        gradients: &[Projection],
        dx: Option<(&Rows, bool)>,
    ) {
        let (rank, rows, scale) = (self.adapter.padded_rank, self.rows, self.adapter.scale);
        for (i, (module, weight, dy)) in gradients.iter().enumerate() {
            let adapted = member(group, *module);
            if adapted.is_none() && dx.is_none() {
                continue;
            }
            let dy = operand(rec, &packs.dy, dy, weight.rows, rows);
            if let Some(m) = adapted {
                let u = self.u.from(m.offset);
                coop_lora::gradient_b(rec, &m.b.grad, dy, z.from(m.offset), scale, rows);
                coop_lora::project_back(rec, u, dy, &m.b.value, scale, rows, &packs.thin);
            }
            let Some((dx, accumulate)) = dx else { continue };
            let term = adapted.zip(group).filter(|_| self.dropout.is_none()).map(|(m, group)| LowRank {
                z: &packs.thin,
                z_offset: 0,
                matrix: &group.a.value,
                first_row: m.offset,
                rank,
                scale: 1.0,
            });
            coop_linear::backward(rec, dx.all(), dy, weight, 1.0, term.as_ref(), rows, accumulate || i > 0);
        }
        if let Some((group, input)) = group.zip(input) {
            let input = operand(rec, &packs.x, input, group.a.value.cols, rows);
            coop_lora::gradient_a(rec, &group.a.grad, self.u.all(), input, rows);
        }
    }
}
