//! [`super::forward`] and [`super::backward`] on 16×16 matrices: operands that are stored in f32 are packed first.

use super::coop16::{LowRank, Product};
use super::cuda::Panels;
use super::{Projection, adapter_input, cuda, finish, masked_backward, matrices, operand};
use crate::base::Module;
use crate::gpu::Recorder;
use crate::ops::Weight;
use crate::ops::act::Act;
use crate::ops::lora::backward as from_one_read;
use crate::ops::lora::coop16::gradient_a;
use crate::ops::lora::coop16_gradients::{Beside, Gradient, MOST, gradients as adapter_gradients};
use crate::ops::lora::coop16_project::{Member, project, project_back};
use crate::ops::lora::{FEW, Lora};
use crate::ops::pack::Packed;
use crate::ops::partial_sums::Unsummed;
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
        let tiles = operand(p.rec.now(), &scratch.x, &input, cols, rows);
        project(p.rec.now(), z.rows().all(), tiles, &lora.group.a.value, rows, &scratch.thin);
        // Under a mask the products read another input than the adapter.
        packed = lora.mask.is_none().then(|| tiles.clone());
    }
    let outputs: Vec<&Projection> = outputs.iter().filter(|(_, _, y)| !y.is_kept()).collect();
    if outputs.is_empty() {
        return;
    }
    let x = packed.unwrap_or_else(|| operand(p.rec.now(), &scratch.x, x, cols, rows).clone());
    if let Some(lora) = lora.filter(|lora| lora.mask.is_some()) {
        scratch.thin.pack_alike(p.rec.now(), z.rows().all(), lora.group.a.value.rows, rows, &x);
    }
    let halves = halves(p.rec.now(), scratch, &outputs, lora, rows);
    let mut unsummed = unsummed(&outputs, rows);
    for (i, (module, weight, y)) in outputs.iter().enumerate() {
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
        let staging = y.staging();
        let product = Product { lora: term.as_ref(), ..Product::new(staging.all(), &x, weight, rows) };
        match &halves {
            Some((panels, halves)) => {
                cuda::forward(p.rec.now(), panels, &product, Some(&halves[i]));
                p.rec.note_halves(y, halves[i].clone());
            }
            None => matrices::forward(p.rec.now(), scratch, &product, unsummed.as_mut()),
        }
    }
    outputs.iter().for_each(|(_, weight, y)| finish(p, weight, y));
    p.rec.leave_parts(outputs[0].2, rows, unsummed, false);
}

/// The memory of all outputs in f16 blocks, where their reader takes these and a kernel of CUDA can leave them, and that of its panels.
fn halves<'a>(
    rec: &Recorder,
    scratch: &'a Operands,
    outputs: &[&Projection],
    lora: Option<Lora>,
    rows: usize,
) -> Option<(&'a Panels, Vec<Packed>)> {
    let panels = scratch.panels.as_ref()?;
    let rank = |module: Module| lora.filter(|l| l.group.member(module).is_some()).map_or(0, |l| l.rank);
    let of = |(module, w, y): &&Projection| {
        let leaves = w.bias.is_none() && cuda::leaves_halves(rec, panels, w, rank(*module), rows);
        y.halves(rows).filter(|_| leaves)
    };
    Some((panels, outputs.iter().map(of).collect::<Option<_>>()?))
}

/// Room for the partial sums of the only output, where its reader adds them up.
fn unsummed(outputs: &[&Projection], rows: usize) -> Option<Unsummed> {
    let [(_, weight, y)] = outputs else { return None };
    if weight.bias.is_none() && y.is_finished_by_reader() { Unsummed::of(weight, rows) } else { None }
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
    let input = lora.map(|lora| adapter_input(p, lora, x));
    let input = lora.zip(input.as_ref());
    let input = input.map(|(lora, x)| operand(p.rec.now(), &scratch.x, x, lora.group.a.value.cols, p.tokens));
    // The gradient of A needs u of every member.
    let last =
        gradients.iter().rposition(|(module, ..)| lora.is_some_and(|l| l.group.member(*module).is_some()));
    // Gradients that are not stored as tiles are packed into the same scratch, one after the other.
    let tiled = gradients.iter().all(|(.., dy)| dy.tiles().is_some());
    let dx_parts = dx.filter(|(dx, _)| tiled && dx.is_finished_by_reader());
    let mut unsummed = dx_parts.and_then(|(dx, _)| unsummed_gradient(p, scratch, dx, gradients, lora));
    let halves = dx.and_then(|dx| half_gradient(p.rec.now(), scratch, dx, gradients, lora, p.tokens));
    let mut first = 0;
    for some in gradients.chunks(if tiled { gradients.len().max(1) } else { 1 }) {
        let dys: Vec<&Packed> = some
            .iter()
            .map(|(_, weight, dy)| operand(p.rec.now(), &scratch.dy, dy, weight.rows, p.tokens))
            .collect();
        let a = input.filter(|_| last.is_some_and(|last| (first..first + some.len()).contains(&last)));
        let mut beside = lora.and_then(|lora| adapter_backward(p, &scratch.thin, lora, some, &dys, z, a));
        if let Some(((panels, halves), (dx, _))) = halves.as_ref().zip(dx) {
            half_products(p, panels, halves, some, &dys, lora, &scratch.thin);
            p.rec.note_halves(dx, halves.clone());
            continue;
        }
        for (i, ((module, weight, _), dy)) in some.iter().zip(dys).enumerate() {
            let Some((dx, accumulate)) = dx else { continue };
            let term = lora.and_then(|lora| term_backward(lora, *module, &scratch.thin));
            let product = Product::new(dx.rows().all(), dy, weight, p.tokens);
            let accumulate = accumulate || first + i > 0;
            let product = Product { lora: term.as_ref(), accumulate, ..product };
            matrices::backward(p.rec.now(), scratch, &product, unsummed.as_mut(), beside.take());
        }
        if let Some(beside) = beside {
            beside.dispatch(p.rec.now());
        }
        first += some.len();
    }
    if let (Some(lora), Some((dx, _))) = (lora, dx) {
        masked_backward(p, dx.rows(), lora);
    }
    if let Some((dx, accumulate)) = dx {
        p.rec.leave_parts(dx, p.tokens, unsummed, accumulate);
    }
}

/// The memory of the gradient of an input in f16 blocks, where its reader takes these and a kernel of CUDA can leave them: every operand is
/// stored. And that of the kernel's panels.
fn half_gradient<'a>(
    rec: &Recorder,
    scratch: &'a Operands,
    (dx, accumulate): (&Act, bool),
    gradients: &[Projection],
    lora: Option<Lora>,
    rows: usize,
) -> Option<(&'a Panels, Packed)> {
    let panels = scratch.panels.as_ref()?;
    let matrices: Vec<&Weight> = gradients.iter().map(|(_, w, _)| *w).collect();
    let masked = lora.is_some_and(|lora| lora.mask.is_some());
    let is_stored = gradients.iter().all(|(.., dy)| dy.tiles().is_some()) || gradients.len() == 1;
    let rank = lora.map_or(0, |lora| lora.rank);
    let leaves = !accumulate && !masked && is_stored;
    let leaves = leaves && rows > FEW && cuda::leaves_half_gradients(rec, panels, &matrices, rank, rows);
    Some((panels, dx.halves(rows).filter(|_| leaves)?))
}

/// The gradient of an input, by one kernel of CUDA for all matrices.
fn half_products(
    p: &mut Pass,
    panels: &Panels,
    dx: &Packed,
    gradients: &[Projection],
    dys: &[&Packed],
    lora: Option<Lora>,
    u: &Packed,
) {
    let (rows, nowhere) = (p.tokens, p.scratch.u.all());
    let term = |(module, ..): &Projection| lora.and_then(|lora| term_backward(lora, *module, u));
    let terms: Vec<Option<LowRank>> = gradients.iter().map(term).collect();
    let of_terms = gradients.iter().zip(dys).zip(&terms);
    let products: Vec<Product> = of_terms
        .map(|(((_, weight, _), dy), term)| Product {
            lora: term.as_ref(),
            ..Product::new(nowhere, dy, weight, rows)
        })
        .collect();
    cuda::backward_in_halves(p.rec.now(), panels, &products, dx);
}

/// Room for the partial sums of the gradient of an input, where nothing but kernels that leave them computes it.
fn unsummed_gradient(
    p: &mut Pass,
    scratch: &Operands,
    dx: &Act,
    gradients: &[Projection],
    lora: Option<Lora>,
) -> Option<Unsummed> {
    let masked = lora.is_some_and(|lora| lora.mask.is_some());
    if masked || any_in_cuda(p.rec.now(), scratch, gradients, p.tokens) {
        return None;
    }
    let products = gradients.iter().map(|(_, weight, _)| weight.tiles.len()).sum();
    Unsummed::new(p.tokens, dx.rows().stride, products)
}

/// Whether the gradient of an input is a product of CUDA's for any of the matrices.
fn any_in_cuda(rec: &Recorder, scratch: &Operands, gradients: &[Projection], rows: usize) -> bool {
    let in_cuda = |(_, w, _): &Projection| cuda::is_worth(rec, [rows, w.cols, w.rows]);
    scratch.panels.is_some() && gradients.iter().any(in_cuda)
}

/// `u·A` of one matrix, where the adapter reads what the matrix reads.
fn term_backward<'a>(lora: Lora<'a>, module: Module, u: &'a Packed) -> Option<LowRank<'a>> {
    let member = lora.group.member(module).filter(|_| lora.mask.is_none())?;
    Some(LowRank {
        z: u,
        z_offset: member.u_offset,
        matrix: &lora.group.a.value,
        first_row: member.offset,
        rank: lora.rank,
        scale: 1.0,
    })
}

/// `u` of some matrices, in f32 and packed in `thin`, and the gradients of their `B`; with the last of these that of `A`, where its
/// input is given. Over few rows, the last gradients are left to a product.
fn adapter_backward<'a, 'p: 'a>(
    p: &mut Pass<'p, '_>,
    thin: &Packed,
    lora: Lora<'a>,
    gradients: &[Projection],
    dys: &[&'a Packed],
    z: &'a Act,
    input: Option<&'a Packed>,
) -> Option<Beside<'a>> {
    let scratch = p.scratch;
    let adapted =
        gradients.iter().zip(dys).filter_map(|((module, ..), dy)| Some((*dy, lora.group.member(*module)?)));
    let products = adapted.map(|(dy, m)| from_one_read::Product {
        member: Member { dy, b: &m.b.value, offset: m.u_offset },
        gradient: Gradient { matrix: &m.b.grad, wide: dy, thin: z.rows().from(m.offset) },
    });
    let products: Vec<_> = products.collect();
    let mut parts = lora.group.u_parts();
    let sum_a = |p: &mut Pass, part: usize| {
        let Some(x) = input else { return };
        gradient_a(p.rec.now(), &lora.group.a.grad, scratch.u.from(part), x, p.tokens);
    };
    if !products.is_empty() && from_one_read::is_worth(p.rec.now(), &products, p.tokens) {
        for some in products.chunks(from_one_read::MOST) {
            from_one_read::backward(p.rec.now(), scratch.u.all(), some, lora.scale, p.tokens, thin);
        }
        parts.into_iter().for_each(|part| sum_a(p, part));
        return None;
    }
    let members: Vec<Member> = products.iter().map(|product| product.member).collect();
    for pair in members.chunks(2) {
        project_back(p.rec.now(), scratch.u.all(), pair, lora.scale, p.tokens, thin);
    }
    let of_b: Vec<Gradient> = products.iter().map(|product| product.gradient).collect();
    let u = scratch.u.from(parts.pop().unwrap_or(0));
    parts.into_iter().for_each(|part| sum_a(p, part));
    let of_a = input.map(|x| Gradient { matrix: &lora.group.a.grad, wide: x, thin: u });
    let mut some: Vec<&[Gradient]> = of_b.chunks(MOST).collect();
    let last = some.pop()?;
    some.into_iter().for_each(|b| adapter_gradients(p.rec.now(), b, None, lora.scale, p.tokens));
    if p.tokens <= FEW {
        return Some(Beside::new(last, of_a, lora.scale, p.tokens));
    }
    adapter_gradients(p.rec.now(), last, of_a, lora.scale, p.tokens);
    None
}
