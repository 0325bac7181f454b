//! [`super::forward`] in decoding.
//!
//! Outputs lie side by side in one row, so that one kernel computes those of a few rows, with `z` behind them; their reader adds the adapter's
//! term. Where it reads rows without anything between them, as those of delta nets do, every output has rows of its own.

use super::Projection;
use super::with_adapter::{self, Applied};
use crate::gpu::Recorder;
use crate::ops::act::Act;
use crate::ops::lora::Term;
use crate::ops::matvec::{self, Down};
use crate::ops::pass::Pass;
use crate::ops::pending::{Gated, Pending};
use crate::ops::{Unfinished, View, Weight, bias};

/// See [`super::forward`]; `z` is scratch.
pub fn forward(p: &mut Pass, outputs: &[Projection], x: &Act, adapter: Option<&Applied>, z: &Act) {
    let first = outputs[0].2;
    if outputs.iter().all(|(.., y)| y.shares_memory(first)) {
        return match p.is_short() {
            true => short(p, outputs, x, adapter),
            false => long(p, outputs, x, adapter, z),
        };
    }
    for (i, output) in outputs.iter().enumerate() {
        let (output, adapter) = (&[*output], adapter.map(|adapter| adapter.member(i)));
        match p.is_short() && p.tokens == 1 {
            true => short(p, output, x, adapter.as_ref()),
            false => long(p, output, x, adapter.as_ref(), z),
        }
        p.rec.now();
    }
}

/// [`super::forward_rows`] in decoding.
pub fn forward_rows(p: &mut Pass, outputs: &[Projection], x: &Act, adapter: Option<&Applied>, z: &Act) {
    let (x, views) = (x.rows(), views(outputs));
    match (p.is_short(), adapter) {
        (true, None) => {
            for (matrix, y) in &views {
                matvec::forward(p.rec.now(), *y, x.all(), 0, &[matrix], None, 1.0, None, p.tokens);
            }
        }
        _ => with_adapter::in_rows(p, &views, x, adapter, z.rows()),
    }
    biases(p.rec.now(), &views, p.tokens);
}

fn long(p: &mut Pass, outputs: &[Projection], x: &Act, adapter: Option<&Applied>, z: &Act) {
    let views = views(outputs);
    let z = z.rows().reshaped(adapter.map_or(0, |adapter| adapter.a.rows));
    // Products in rows read finished inputs: this ends work that is pending on `x`.
    p.rec.now();
    with_adapter::forward(p, &views, x.rows(), adapter, &z);
    biases(p.rec.now(), &views, p.tokens);
}

fn short(p: &mut Pass, outputs: &[Projection], x: &Act, adapter: Option<&Applied>) {
    let matrices: Vec<&Weight> = outputs.iter().map(|(_, matrix, _)| *matrix).collect();
    let widths: Vec<usize> = matrices.iter().map(|matrix| matrix.rows).collect();
    let (y, tokens) = (outputs[0].2, p.tokens);
    let z_offset = widths.iter().sum::<usize>().next_multiple_of(4);
    let down = adapter.map(|adapter| Down { a: &adapter.a, z_offset });
    let (to, down) = (y.view(), down.as_ref());
    let finishes = |pending: &Pending| match pending {
        Pending::Gated(_) => true,
        Pending::Sum(sum) => sum.ends_in_product(x),
        _ => false,
    };
    match p.rec.take(x, tokens, finishes) {
        Some(Pending::Gated(Gated { gate, term, up, activation })) => {
            let gate = &Unfinished::of(&gate, term.as_ref().map(Term::up));
            let x = matvec::Gated { gate, up: up.view(), activation };
            matvec::forward_gated(p.rec.now(), to, &x, matrices[0], down, tokens);
        }
        Some(Pending::Sum(sum)) => sum.finish_in_product(p.rec.now(), x, to, matrices[0], down),
        _ => match x.integers() {
            Some(row) => matvec::forward_integers(p.rec.now(), to, x.view(), row, &matrices, down, None),
            None => matvec::forward(p.rec.now(), to, x.view(), 0, &matrices, down, 1.0, None, tokens),
        },
    }
    biases(p.rec.now(), &views(outputs), tokens);
    if let Some(Applied { transposed, offsets, rank, .. }) = adapter {
        let (b, offsets, rank) = (transposed.clone(), offsets.clone(), *rank);
        p.rec.leave(y, tokens, Pending::Term(Term { b, offsets, rank, z_offset, widths }));
    }
}

fn views<'a>(outputs: &[Projection<'a>]) -> Vec<(&'a Weight, View<'a>)> {
    outputs.iter().map(|(_, matrix, y)| (*matrix, y.view())).collect()
}

/// Adds the frozen biases of matrices to their outputs.
fn biases(rec: &mut Recorder, outputs: &[(&Weight, View)], rows: usize) {
    for (matrix, y) in outputs {
        if let Some(bias) = &matrix.bias {
            bias::forward(rec, *y, bias, matrix.rows, rows);
        }
    }
}
