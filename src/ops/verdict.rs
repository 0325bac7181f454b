//! Whether each row that carries loss is right, wrong or not finite, and the counts over an optimizer step.

use super::Rows;
use super::adamw::Clip;
use crate::gpu::{Binding, Kernel, Recorder, grid};

/// Twin of `Params` in shaders/verdict.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    width4: u32,
    vocab: u32,
    stride4: u32,
    target_offset: u32,
    offset: u32,
}

/// The likeliest token is another one.
pub const WRONG: u32 = 0;
/// The target is the likeliest token; of equal ones, the first.
pub const RIGHT: u32 = 1;
/// A logit is infinite or not a number, or the sum of squares of the hidden state is: its norm has lost the row.
pub const NOT_FINITE: u32 = 2;

/// Writes one of [`WRONG`], [`RIGHT`] and [`NOT_FINITE`] for each of `rows` rows.
///
/// `hidden` `[rows, D]` is what the output norm reads, `logits` `[rows, V]` stand before the softcap and are only read;
/// `targets` u32 and `verdicts` u32 come with the first row's place in them.
pub fn rows(
    rec: &mut Recorder,
    verdicts: (&wgpu::Buffer, usize),
    hidden: &Rows,
    logits: &Rows,
    targets: (&wgpu::Buffer, usize),
    vocab: usize,
    rows: usize,
) {
    let params = Params {
        rows: rows as u32,
        width4: (hidden.stride / 4) as u32,
        vocab: vocab as u32,
        stride4: (logits.stride / 4) as u32,
        target_offset: targets.1 as u32,
        offset: verdicts.1 as u32,
    };
    let bindings = [hidden.bind(1), logits.bind(2), bind(3, targets.0), bind(4, verdicts.0)];
    rec.dispatch(Kernel::new("verdict", "rows"), &params, &bindings, grid(rows));
}

/// Counts the first `rows` verdicts into `clip`; one that is not finite keeps the optimizer from moving.
///
/// Must run between [`Clip::norm`] and the optimizer.
pub fn tally(rec: &mut Recorder, clip: &Clip, verdicts: &wgpu::Buffer, rows: usize) {
    let params = Params { rows: rows as u32, width4: 0, vocab: 0, stride4: 0, target_offset: 0, offset: 0 };
    let bindings = [bind(4, verdicts), bind(5, &clip.state)];
    rec.dispatch(Kernel::new("verdict", "tally"), &params, &bindings, [1, 1, 1]);
}

fn bind(index: u32, buffer: &wgpu::Buffer) -> Binding<'_> {
    Binding { index, buffer, range: None }
}
