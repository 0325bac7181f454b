//! Whether each loss row is right, wrong or not finite, and the counts over an optimizer step.

use crate::gpu::{Binding, Kernel, Recorder, grid};
use crate::ops::Rows;
use crate::ops::adamw::Clip;

/// Twin of `Params` in shaders/row_status/plain.wgsl.
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

/// The hidden states of a chunk of rows, and where their status goes.
#[derive(Clone, Copy)]
pub struct Verdicts<'a> {
    /// The output norm's input `[rows, D]`.
    pub hidden: &'a Rows,
    /// One of [`WRONG`], [`RIGHT`] and [`NOT_FINITE`] for each row, u32, and the first row's place in it.
    pub buffer: (&'a wgpu::Buffer, usize),
}

/// One chunk of logits and where its targets and losses lie.
pub struct Chunk<'a> {
    /// `[rows, V]`, before the softcap.
    pub logits: &'a Rows,
    /// Rows in the chunk, at most 65 535.
    pub rows: usize,
    /// `V`.
    pub vocab: usize,
    /// The softcap.
    pub softcap: Option<f32>,
    /// The logits behind the softcap are divided by it; positive.
    pub temperature: f32,
    /// Ids to predict, u32, and the first row's place in it.
    pub targets: (&'a wgpu::Buffer, usize),
    /// Losses, f32, and the first row's place in it.
    pub losses: (&'a wgpu::Buffer, usize),
}

impl Chunk<'_> {
    /// The factor that divides by the temperature; exactly 1 at a temperature of 1.
    pub fn coldness(&self) -> f32 {
        1.0 / self.temperature
    }
}

/// Writes the verdicts of `chunk`, whose logits stand before the softcap and are only read.
pub fn rows(rec: &mut Recorder, chunk: &Chunk, verdicts: &Verdicts) {
    let params = Params {
        rows: chunk.rows as u32,
        width4: (verdicts.hidden.stride / 4) as u32,
        vocab: chunk.vocab as u32,
        stride4: (chunk.logits.stride / 4) as u32,
        target_offset: chunk.targets.1 as u32,
        offset: verdicts.buffer.1 as u32,
    };
    let bindings =
        [verdicts.hidden.bind(1), chunk.logits.bind(2), bind(3, chunk.targets.0), bind(4, verdicts.buffer.0)];
    rec.dispatch(Kernel::new("row_status/plain", "rows"), &params, &bindings, grid(chunk.rows));
}

/// Counts the first `rows` verdicts into `clip`; one that is not finite keeps the optimizer from moving.
///
/// Must run between [`Clip::norm`] and the optimizer.
pub fn tally(rec: &mut Recorder, clip: &Clip, verdicts: &wgpu::Buffer, rows: usize) {
    let params = Params { rows: rows as u32, width4: 0, vocab: 0, stride4: 0, target_offset: 0, offset: 0 };
    let bindings = [bind(4, verdicts), bind(5, &clip.state)];
    rec.dispatch(Kernel::new("row_status/plain", "tally"), &params, &bindings, [1, 1, 1]);
}

fn bind(index: u32, buffer: &wgpu::Buffer) -> Binding<'_> {
    Binding { index, buffer, range: None }
}
