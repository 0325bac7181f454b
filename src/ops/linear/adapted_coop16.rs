//! [`super::forward`] and [`super::backward`] on 16×16 matrices: operands that are stored in f32 are packed first.

use super::coop16::LowRank;
use super::{Projection, adapter_input, finish, masked_backward, matrices, operand};
use crate::ops::act::Act;
use crate::ops::lora::Lora;
use crate::ops::lora::coop16 as lora_coop16;
use crate::ops::lora::coop16_gradients::{Gradient, gradients as adapter_gradients};
use crate::ops::pass::{Operands, Pass};

/// See [`super::forward`]. The input's tiles are packed once, and `z` is left packed for the products.
pub fn forward(
    p: &mut Pass,
    scratch: &Operands,
    outputs: &[Projection],
    x: &Act,
    lora: Option<Lora>,
    z: &Act,
) {
    let rows = p.tokens;
    let cols = outputs[0].1.cols;
    let mut packed = None;
    if let Some(lora) = lora {
        let input = adapter_input(p, lora, x);
        let tiles = operand(p.rec, &scratch.x, &input, cols, rows);
        let thin = lora.mask.is_none().then_some(&scratch.thin);
        lora_coop16::project(p.rec, z.rows().all(), tiles, &lora.group.a.value, rows, thin);
        // Under a mask the products read another input than the adapter.
        packed = lora.mask.is_none().then(|| tiles.clone());
    }
    let outputs: Vec<&Projection> = outputs.iter().filter(|(_, _, y)| !y.is_kept()).collect();
    if outputs.is_empty() {
        return;
    }
    let x = packed.unwrap_or_else(|| operand(p.rec, &scratch.x, x, cols, rows).clone());
    if let Some(lora) = lora.filter(|lora| lora.mask.is_some()) {
        scratch.thin.pack_alike(p.rec, z.rows().all(), lora.group.a.value.rows, rows, &x);
    }
    for (module, weight, y) in &outputs {
        let term = lora.and_then(|lora| {
            let member = lora.group.member(*module)?;
            Some(LowRank {
                z: &scratch.thin,
                z_offset: member.offset,
                matrix: &member.b.value,
                first_row: 0,
                rank: lora.rank,
                scale: lora.scale,
            })
        });
        matrices::forward(p.rec, scratch, y.staging().all(), &x, weight, 1.0, term.as_ref(), rows);
    }
    outputs.iter().for_each(|(_, weight, y)| finish(p, weight, y));
}

/// See [`super::backward`].
pub fn backward(
    p: &mut Pass,
    scratch: &Operands,
    dx: Option<(&Act, bool)>,
    gradients: &[Projection],
    x: &Act,
    lora: Option<Lora>,
    z: &Act,
) {
    let rows = p.tokens;
    let u = &p.scratch.u;
    let input = lora.map(|lora| adapter_input(p, lora, x));
    let input = lora.zip(input.as_ref());
    let input = input.map(|(lora, x)| operand(p.rec, &scratch.x, x, lora.group.a.value.cols, rows));
    // The gradient of A needs u of every member.
    let last =
        gradients.iter().rposition(|(module, ..)| lora.is_some_and(|l| l.group.member(*module).is_some()));
    for (i, (module, weight, dy)) in gradients.iter().enumerate() {
        let member = lora.and_then(|lora| Some((lora, lora.group.member(*module)?)));
        if member.is_none() && dx.is_none() {
            continue;
        }
        let dy = operand(p.rec, &scratch.dy, dy, weight.rows, rows);
        if let Some((lora, member)) = member {
            let (z, u) = (z.rows().from(member.offset), u.from(member.offset));
            lora_coop16::project_back(p.rec, u, dy, &member.b.value, lora.scale, rows, &scratch.thin);
            let b = Gradient { matrix: &member.b.grad, wide: dy, thin: z };
            let a = input.filter(|_| last == Some(i));
            let a = a.map(|x| Gradient { matrix: &lora.group.a.grad, wide: x, thin: p.scratch.u.all() });
            adapter_gradients(p.rec, b, a, lora.scale, rows);
        }
        let Some((dx, accumulate)) = dx else { continue };
        let fused = member.filter(|(lora, _)| lora.mask.is_none());
        let term = fused.map(|(lora, member)| LowRank {
            z: &scratch.thin,
            z_offset: 0,
            matrix: &lora.group.a.value,
            first_row: member.offset,
            rank: lora.rank,
            scale: 1.0,
        });
        let (dx, accumulate) = (dx.rows().all(), accumulate || i > 0);
        matrices::backward(p.rec, scratch, dx, dy, weight, 1.0, term.as_ref(), rows, accumulate);
    }
    if let (Some(lora), Some((dx, _))) = (lora, dx) {
        masked_backward(p, dx.rows(), lora);
    }
}
