//! [`super::forward`] and [`super::backward`] for rows of f32.

use super::tiled::{self, LowRank};
use super::{Projection, adapter_input, finish, masked_backward};
use crate::ops::act::Act;
use crate::ops::lora::{self, Lora};
use crate::ops::pass::Pass;

/// See [`super::forward`].
pub fn forward(p: &mut Pass, outputs: &[Projection], x: &Act, lora: Option<Lora>, z: &Act) {
    if let Some(lora) = lora {
        let input = adapter_input(p, lora, x);
        let a = lora.group.a.value.as_weight();
        tiled::forward(p.rec.now(), z.rows().all(), input.rows().all(), &a, 1.0, None, p.tokens);
    }
    for (module, weight, y) in outputs.iter().filter(|(_, _, y)| !y.is_kept()) {
        let term = lora.and_then(|lora| {
            let member = lora.group.member(*module)?;
            let z = z.rows().from(member.offset);
            Some(LowRank { z, matrix: &member.b.value, rank: lora.rank, scale: lora.scale })
        });
        let rows = y.staging();
        tiled::forward(p.rec.now(), rows.all(), x.rows().all(), weight, 1.0, term.as_ref(), p.tokens);
        finish(p, weight, y);
    }
}

/// See [`super::backward`].
pub fn backward(
    p: &mut Pass,
    dx: Option<(&Act, bool)>,
    gradients: &[Projection],
    x: &Act,
    lora: Option<Lora>,
    z: &Act,
) {
    if let Some(lora) = lora {
        adapter_gradients(p, gradients, x, lora, z);
    }
    let Some((dx, accumulate)) = dx else { return };
    let dx = dx.rows();
    let fused = lora.filter(|lora| lora.mask.is_none()).map(|lora| {
        let a = &lora.group.a.value;
        LowRank { z: p.scratch.u.all(), matrix: a, rank: a.rows, scale: 1.0 }
    });
    for (i, (_, weight, dy)) in gradients.iter().enumerate() {
        let is_last = i + 1 == gradients.len();
        let term = fused.as_ref().filter(|_| is_last);
        let accumulate = accumulate || i > 0;
        tiled::backward(p.rec.now(), dx.all(), dy.rows().all(), weight, 1.0, term, p.tokens, accumulate);
    }
    if let Some(lora) = lora {
        masked_backward(p, dx, lora);
    }
}

fn adapter_gradients(p: &mut Pass, gradients: &[Projection], x: &Act, lora: Lora, z: &Act) {
    let u = &p.scratch.u;
    for (module, _, dy) in gradients {
        let Some(member) = lora.group.member(*module) else { continue };
        let dy = dy.rows();
        let z = z.rows().from(member.offset);
        lora::gradient(p.rec.now(), &member.b.grad, dy.all(), z, lora.scale, p.tokens);
        let b = member.b.value.as_weight();
        let u = u.from(member.offset);
        tiled::backward(p.rec.now(), u, dy.all(), &b, lora.scale, None, p.tokens, false);
    }
    let input = adapter_input(p, lora, x);
    lora::gradient(p.rec.now(), &lora.group.a.grad, u.all(), input.rows().all(), 1.0, p.tokens);
}
