//! Products with a matrix that the file has transposed: `Wᵀ` `[K, N]` for `N` outputs of `K` inputs. What is backward for other matrices is
//! forward here.
//!
//! Forward `y = x·Wᵀ + s·z·Bᵀ`, with the `z` of a matrix that shares `A`. Backward `dB += s·dyᵀ·z`, `u = s·dy·B` and `dx = dy·W + u·A`; `u`
//! stays where the backward of the matrix that shares `A` adds up its gradient.

use super::coop16::Product;
use super::{Adapters, Projection, matrices, operand, tiled};
use crate::ops::act::Act;
use crate::ops::lora::{self, Lora};
use crate::ops::pass::Pass;
use crate::ops::{View, Weight};

/// The output of the matrix that reads `x` `[T, K]`. In training, `z` is there already.
pub fn forward(p: &mut Pass, (module, w, y): Projection, x: &Act, adapters: Adapters, z: &Act) {
    let (y, z) = (y.rows().all(), z.rows());
    let term = match &adapters {
        Adapters::Trained(Some(lora)) => lora.group.member(module).map(|member| {
            let z = z.from(member.offset);
            (lora.scale, z, &member.b.value)
        }),
        Adapters::Applied(Some(adapter)) => {
            let a = adapter.a.as_weight();
            tiled::forward(p.rec.now(), z.all(), x.rows().all(), &a, 1.0, None, p.tokens);
            Some((1.0, z.all(), &adapter.b[0]))
        }
        _ => None,
    };
    if let Some((scale, z, b)) = term {
        tiled::forward(p.rec.now(), y, z, &b.as_weight(), scale, None, p.tokens);
    }
    product(p, y, x, w, term.is_some());
}

/// The gradient of `x`, and that of `B`, from the gradient of the output.
pub fn backward(p: &mut Pass, dx: &Act, (module, w, dy): Projection, lora: Option<Lora>, z: &Act) {
    let member = lora.and_then(|lora| Some((lora, lora.group.member(module)?)));
    let u = &p.scratch.u;
    if let Some((lora, member)) = member {
        let (dy, z, b) = (dy.rows().all(), z.rows().from(member.offset), member.b.value.as_weight());
        lora::gradient(p.rec.now(), &member.b.grad, dy, z, lora.scale, p.tokens);
        tiled::backward(p.rec.now(), u.from(member.u_offset), dy, &b, lora.scale, None, p.tokens, false);
    }
    let to = dx.rows().all();
    match p.operands() {
        None => tiled::forward(p.rec.now(), to, dy.rows().all(), w, 1.0, None, p.tokens),
        Some(scratch) => {
            let dy = operand(p.rec.now(), &scratch.dy, dy, w.cols, p.tokens);
            matrices::forward(p.rec.now(), &scratch, &Product::new(to, dy, w, p.tokens), None);
        }
    }
    // Under a mask, the matrix that shares A adds this term too.
    if let Some((lora, member)) = member.filter(|(lora, _)| lora.mask.is_none()) {
        let a = lora.group.a.value.as_weight();
        tiled::backward(p.rec.now(), to, u.from(member.u_offset), &a, 1.0, None, p.tokens, true);
    }
}

/// `y (+)= x·Wᵀ`.
fn product(p: &mut Pass, y: View, x: &Act, w: &Weight, accumulate: bool) {
    match p.operands() {
        None => tiled::backward(p.rec.now(), y, x.rows().all(), w, 1.0, None, p.tokens, accumulate),
        Some(scratch) => {
            let x = operand(p.rec.now(), &scratch.x, x, w.rows, p.tokens);
            let product = Product { accumulate, ..Product::new(y, x, w, p.tokens) };
            matrices::backward(p.rec.now(), &scratch, &product, None, None);
        }
    }
}
