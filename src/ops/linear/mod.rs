//! Products of an input with frozen matrices, and with the adapters of those matrices.
//!
//! Forward, for every matrix `W_i` that reads `x`: `z = mask(x)·Aᵀ`, `y_i = x·W_iᵀ + b_i + s·z_i·B_iᵀ`. `z` is kept for backward:
//! `dB_i += s·dy_iᵀ·z_i`, `u_i = s·dy_i·B_i`, `dA += uᵀ·mask(x)` and `dx (+)= Σ dy_i·W_i + mask(u·A)`.

mod adapted_coop16;
mod adapted_tiled;
pub mod coop16;
pub mod cuda;
mod decoded;
pub mod experts;
pub mod grouped;
pub mod grouped_coop16;
mod matrices;
pub mod tiled;
pub mod tiling;
pub mod transposed;
pub mod tune;
pub mod with_adapter;

use crate::base::Module;
use crate::gpu::Recorder;
use crate::ops::act::Act;
use crate::ops::bias;
use crate::ops::dropout;
use crate::ops::lora::Lora;
use crate::ops::matvec;
use crate::ops::pack::Packed;
use crate::ops::partial_sums::Unsummed;
use crate::ops::pass::Pass;
use crate::ops::{Rows, Weight};
use coop16::Product;
use with_adapter::Applied;

/// A frozen matrix `[N, K]`, the module that it is, and its output or the gradient of that `[T, N]`.
pub type Projection<'a> = (Module, &'a Weight, &'a Act);

/// The adapters of the matrices that read one input.
pub enum Adapters<'a> {
    /// Trained ones, in training.
    Trained(Option<Lora<'a>>),
    /// Frozen ones, in decoding.
    Applied(Option<&'a Applied>),
}

/// Computes `z` and every output of the matrices that read `x` `[T, K]`. Outputs that are kept already are skipped, and `z` where it is
/// kept beside all of them. The only output may be left as partial sums, where its reader adds them up.
pub fn forward(p: &mut Pass, outputs: &[Projection], x: &Act, adapters: Adapters, z: &Act) {
    if are_kept(outputs, z) {
        return;
    }
    match (adapters, p.operands()) {
        (Adapters::Applied(adapter), _) => decoded::forward(p, outputs, x, adapter, z),
        (Adapters::Trained(lora), Some(scratch)) => {
            adapted_coop16::forward(p, &scratch, outputs, x, lora, z);
        }
        (Adapters::Trained(lora), None) => adapted_tiled::forward(p, outputs, x, lora, z),
    }
}

fn are_kept(outputs: &[Projection], z: &Act) -> bool {
    z.is_kept() && outputs.iter().all(|(_, _, y)| y.is_kept())
}

/// Adds the gradients of the adapters' matrices and, where `dx` is given, computes the gradient of `x`: added to what `dx`
/// holds where the flag says so. That gradient may be left as partial sums, where its reader adds them up.
pub fn backward(
    p: &mut Pass,
    dx: Option<(&Act, bool)>,
    gradients: &[Projection],
    x: &Act,
    lora: Option<Lora>,
    z: &Act,
) {
    match p.operands() {
        Some(scratch) => adapted_coop16::backward(p, &scratch, dx, gradients, x, lora, z),
        None => adapted_tiled::backward(p, dx, gradients, x, lora, z),
    }
}

/// [`forward`] by the kernels for f32 rows on every device: for a router, whose choices must not depend on the device.
pub fn forward_rows(p: &mut Pass, outputs: &[Projection], x: &Act, adapters: Adapters, z: &Act) {
    match adapters {
        Adapters::Trained(lora) => adapted_tiled::forward(p, outputs, x, lora, z),
        Adapters::Applied(adapter) => decoded::forward_rows(p, outputs, x, adapter, z),
    }
}

/// The mirror of [`forward_rows`].
pub fn backward_rows(
    p: &mut Pass,
    dx: Option<(&Act, bool)>,
    gradients: &[Projection],
    x: &Act,
    lora: Option<Lora>,
    z: &Act,
) {
    adapted_tiled::backward(p, dx, gradients, x, lora, z);
}

/// `y = scale·x·Wᵀ` for a matrix without adapter, which may be left as partial sums, where its reader adds them up.
pub fn frozen(p: &mut Pass, y: &Act, x: &Act, weight: &Weight, scale: f32) {
    let to = y.rows().all();
    if p.is_short() {
        return matvec::forward(p.rec.now(), to, x.rows().all(), 0, &[weight], None, scale, None, p.tokens);
    }
    let Some(scratch) = p.operands() else {
        return tiled::forward(p.rec.now(), to, x.rows().all(), weight, scale, None, p.tokens);
    };
    let x = operand(p.rec.now(), &scratch.x, x, weight.cols, p.tokens);
    let product = Product { scale, ..Product::new(to, x, weight, p.tokens) };
    if !y.is_finished_by_reader() {
        return matrices::forward(p.rec.now(), &scratch, &product, None);
    }
    let mut parts = Unsummed::of(weight, p.tokens);
    coop16::forward_onto(p.rec.now(), &product, parts.as_mut());
    p.rec.leave_parts(y, p.tokens, parts, false);
}

/// `dx = dy·W` for a matrix without adapter.
pub fn frozen_backward(p: &mut Pass, dx: &Act, dy: &Act, weight: &Weight) {
    let to = dx.rows().all();
    let Some(scratch) = p.operands() else {
        return tiled::backward(p.rec.now(), to, dy.rows().all(), weight, 1.0, None, p.tokens, false);
    };
    let dy = operand(p.rec.now(), &scratch.dy, dy, weight.rows, p.tokens);
    matrices::backward(p.rec.now(), &scratch, &Product::new(to, dy, weight, p.tokens), None, None);
}

/// Adds the frozen bias of `weight`, where it has one, to its output in staging memory, and stores that.
fn finish(p: &mut Pass, weight: &Weight, y: &Act) {
    if let Some(bias) = &weight.bias {
        bias::forward(p.rec.now(), y.staging().all(), bias, weight.rows, p.tokens);
    }
    y.store(p.rec.now(), p.tokens);
}

/// The tiles of `x` `[rows, cols]` as they are stored, or packed into `scratch`.
fn operand<'a>(rec: &mut Recorder, scratch: &'a Packed, x: &'a Act, cols: usize, rows: usize) -> &'a Packed {
    if let Some(tiles) = x.tiles() {
        return tiles;
    }
    scratch.pack(rec, x.rows().all(), cols, rows);
    scratch
}

/// The input as the adapter reads it: under its dropout mask, where it has one.
fn adapter_input(p: &mut Pass, lora: Lora, x: &Act) -> Act {
    let Some(mask) = lora.mask else { return x.clone() };
    let rows = x.rows();
    let masked = p.scratch.masked.reshaped(rows.stride);
    dropout::forward(p.rec.now(), &masked, rows, mask, p.first, p.tokens);
    masked.into()
}

/// `dx += mask(u·A)`, where the adapter reads `x` under a mask.
fn masked_backward(p: &mut Pass, dx: &Rows, lora: Lora) {
    let Some(mask) = lora.mask else { return };
    let masked = p.scratch.masked.reshaped(dx.stride);
    let a = lora.group.a.value.as_weight();
    for (i, u) in lora.group.u_parts().into_iter().enumerate() {
        let u = p.scratch.u.from(u);
        tiled::backward(p.rec.now(), masked.all(), u, &a, 1.0, None, p.tokens, i > 0);
    }
    dropout::backward(p.rec.now(), dx, &masked, mask, p.first, p.tokens);
}
