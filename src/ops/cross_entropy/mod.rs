//! Softcap, temperature and cross entropy, in place over a bounded chunk of logits.

pub mod coop16;

use crate::gpu::{Binding, Kernel, Recorder};
use crate::ops::Rows;
use crate::ops::act::Act;
use crate::ops::pass::Pass;
pub use crate::ops::row_status::Chunk;
use crate::ops::row_status::{self, Verdicts};

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
    coldness: f32,
}

/// Losses and row status; the logits are lost.
pub fn forward(p: &mut Pass, chunk: &Chunk, verdicts: &Verdicts) {
    if p.operands().is_some() && coop16::supports(chunk.vocab) {
        coop16::forward(p.rec.now(), chunk, verdicts);
    } else {
        // The row status comes first: the softcap hides what is not finite.
        row_status::rows(p.rec.now(), chunk, verdicts);
        chunk.forward(p.rec.now());
    }
}

/// Losses, row status, and `dlogits = coefficient·∂loss/∂logits` `[rows, V]`; the logits are lost.
pub fn backward(p: &mut Pass, chunk: &Chunk, verdicts: &Verdicts, coefficients: &wgpu::Buffer) -> Act {
    let operands = p.operands();
    if let Some(dlogits) = operands.as_ref().map(|o| &o.dy).filter(|_| coop16::supports(chunk.vocab)) {
        coop16::backward(p.rec.now(), chunk, verdicts, dlogits, coefficients);
        return Act::tiled(dlogits.clone(), None);
    }
    // The row status comes first: the softcap hides what is not finite.
    row_status::rows(p.rec.now(), chunk, verdicts);
    chunk.backward(p.rec.now(), coefficients);
    chunk.logits.clone().into()
}

impl Chunk<'_> {
    /// Losses only; the logits end up capped.
    pub fn forward(&self, rec: &mut Recorder) {
        self.dispatch(rec, "forward", None);
    }

    /// Losses, and `coefficient·∂loss/∂logits` in place of the logits.
    ///
    /// `coefficients`, f32, holds the gradient of the objective with respect to each row's loss, at the same places as
    /// `losses`.
    pub fn backward(&self, rec: &mut Recorder, coefficients: &wgpu::Buffer) {
        self.dispatch(rec, "backward", Some(coefficients));
    }

    fn dispatch(&self, rec: &mut Recorder, entry: &'static str, coefficients: Option<&wgpu::Buffer>) {
        let params = self.params();
        let mut bindings = vec![
            self.logits.bind(1),
            Binding { index: 2, buffer: self.targets.0, range: None },
            Binding { index: 3, buffer: self.losses.0, range: None },
        ];
        bindings.extend(coefficients.map(|buffer| Binding { index: 4, buffer, range: None }));
        rec.dispatch(Kernel::new("cross_entropy/plain", entry), &params, &bindings, [params.rows, 1, 1]);
    }

    fn params(&self) -> Params {
        Params {
            rows: self.rows as u32,
            vocab: self.vocab as u32,
            stride: self.logits.stride as u32,
            target_offset: self.targets.1 as u32,
            loss_offset: self.losses.1 as u32,
            softcap: self.softcap.unwrap_or(0.0),
            coldness: self.coldness(),
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
        coldness: 1.0,
    };
    // A thread takes about sixteen logits.
    let groups = [vocab.div_ceil(64 * 16) as u32, params.rows, 1];
    rec.dispatch(Kernel::new("cross_entropy/plain", "cap"), &params, &[logits.bind(1)], groups);
}
