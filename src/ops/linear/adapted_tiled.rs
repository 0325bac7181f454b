//! [`super::forward`] and [`super::backward`] for rows of f32.

use super::tiled::{self, LowRank};
use super::{Projection, adapter_input, finish, masked_backward};
use crate::ops::View;
use crate::ops::act::Act;
use crate::ops::lora::{self, Group, Lora};
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
    let unmasked = lora.filter(|lora| lora.mask.is_none());
    let u = &p.scratch.u;
    for (i, (module, weight, dy)) in gradients.iter().enumerate() {
        // One product has the terms of all members, unless each has the same rows of A.
        let term = unmasked.and_then(|lora| match lora.group.shares_a() {
            true => Some(input_term(lora.group, u.from(lora.group.member(*module)?.u_offset))),
            false => (i + 1 == gradients.len()).then(|| input_term(lora.group, u.all())),
        });
        let (accumulate, dy) = (accumulate || i > 0, dy.rows().all());
        tiled::backward(p.rec.now(), dx.all(), dy, weight, 1.0, term.as_ref(), p.tokens, accumulate);
    }
    if let Some(lora) = lora {
        masked_backward(p, dx, lora);
    }
}

/// The term `u·A` of a gradient of the input.
fn input_term<'a>(group: &'a Group, u: View<'a>) -> LowRank<'a> {
    let a = &group.a.value;
    LowRank { z: u, matrix: a, rank: a.rows, scale: 1.0 }
}

fn adapter_gradients(p: &mut Pass, gradients: &[Projection], x: &Act, lora: Lora, z: &Act) {
    let u = &p.scratch.u;
    for (module, _, dy) in gradients {
        let Some(member) = lora.group.member(*module) else { continue };
        let dy = dy.rows();
        let z = z.rows().from(member.offset);
        lora::gradient(p.rec.now(), &member.b.grad, dy.all(), z, lora.scale, p.tokens);
        let b = member.b.value.as_weight();
        let u = u.from(member.u_offset);
        tiled::backward(p.rec.now(), u, dy.all(), &b, lora.scale, None, p.tokens, false);
    }
    let input = adapter_input(p, lora, x);
    for part in lora.group.u_parts() {
        lora::gradient(p.rec.now(), &lora.group.a.grad, u.from(part), input.rows().all(), 1.0, p.tokens);
    }
}
