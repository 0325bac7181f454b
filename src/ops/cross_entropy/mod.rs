//! Softcap and cross entropy, in place over a bounded chunk of logits.

pub mod coop16;

use crate::gpu::{Binding, Kernel, Recorder};
use crate::ops::Rows;

/// Twin of `Params` in shaders/cross_entropy/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    vocab: u32,
    stride: u32,
    target_offset: u32,
    loss_offset: u32,
    softcap: f32,
    factor: f32,
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
    /// Ids to predict, u32, and the first row's place in it.
    pub targets: (&'a wgpu::Buffer, usize),
    /// Losses, f32, and the first row's place in it.
    pub losses: (&'a wgpu::Buffer, usize),
}

impl Chunk<'_> {
    /// Losses only; the logits end up capped.
    pub fn forward(&self, rec: &mut Recorder) {
        self.dispatch(rec, "forward", 0.0);
    }

    /// Losses, and `factor·∂loss/∂logits` in place of the logits.
    pub fn backward(&self, rec: &mut Recorder, factor: f32) {
        self.dispatch(rec, "backward", factor);
    }

    fn dispatch(&self, rec: &mut Recorder, entry: &'static str, factor: f32) {
        let params = self.params(factor);
        let bindings = [
            self.logits.bind(1),
            Binding { index: 2, buffer: self.targets.0, range: None },
            Binding { index: 3, buffer: self.losses.0, range: None },
        ];
        rec.dispatch(Kernel::new("cross_entropy/plain", entry), &params, &bindings, [params.rows, 1, 1]);
    }

    fn params(&self, factor: f32) -> Params {
        Params {
            rows: self.rows as u32,
            vocab: self.vocab as u32,
            stride: self.logits.stride as u32,
            target_offset: self.targets.1 as u32,
            loss_offset: self.losses.1 as u32,
            softcap: self.softcap.unwrap_or(0.0),
            factor,
        }
    }
}

/// `logits = cap·tanh(logits/cap)` for `rows` rows.
pub fn cap(rec: &mut Recorder, logits: &Rows, vocab: usize, softcap: f32, rows: usize) {
    let params = Params {
        rows: rows as u32,
        vocab: vocab as u32,
        stride: logits.stride as u32,
        target_offset: 0,
        loss_offset: 0,
        softcap,
        factor: 0.0,
    };
    rec.dispatch(Kernel::new("cross_entropy/plain", "cap"), &params, &[logits.bind(1)], [params.rows, 1, 1]);
}
