//! Divergence from a teacher's distribution, with cross entropy, in place over a bounded chunk of logits.
//!
//! With the student's distribution p and the teacher's q, both at temperature T, over the teacher's likeliest tokens and one bucket for all
//! others:
//!
//! ```text
//! forward KL      Σ q·(ln q − ln p)
//! reverse KL      Σ p·(ln p − ln q)
//! Jensen-Shannon  beta·Σ q·(ln q − ln m) + (1 − beta)·Σ p·(ln p − ln m),  m = beta·q + (1 − beta)·p
//! ```
//!
//! Must match TRL: `GKDTrainer.generalized_jsd_loss` (trl/experimental/gkd/gkd_trainer.py).

pub mod teacher;

use crate::gpu::{Binding, Kernel, Recorder};
use crate::ops::act::Act;
use crate::ops::pass::Pass;
use crate::ops::row_status::{self, Chunk, Verdicts};

/// The distance between the teacher's distribution and the student's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Divergence {
    /// KL(teacher ‖ student).
    #[default]
    ForwardKl,
    /// KL(student ‖ teacher).
    ReverseKl,
    /// The generalized Jensen-Shannon divergence.
    Jsd {
        /// Part of the teacher in the mixture, between 0 and 1.
        beta: f64,
    },
}

/// The loss of a row: `weight·divergence + sft_weight·cross entropy`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distill {
    /// The divergence.
    pub divergence: Divergence,
    /// Both models' logits are divided by it; above 0.
    pub temperature: f64,
    /// Weight of the divergence.
    pub weight: f64,
    /// Weight of the cross entropy.
    pub sft_weight: f64,
}

impl Distill {
    /// The loss with these means of divergence and cross entropy.
    pub fn loss(&self, divergence: f64, cross_entropy: f64) -> f64 {
        self.weight * divergence + self.sft_weight * cross_entropy
    }
}

/// Twin of `Params` in shaders/distill/plain.wgsl.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    rows: u32,
    vocab: u32,
    stride4: u32,
    top: u32,
    target_offset: u32,
    loss_offset: u32,
    softcap: f32,
    divergence: u32,
    beta: f32,
    warmth: f32,
    weight: f32,
    sft_weight: f32,
}

/// The teacher's distributions of the rows, at the same places as their targets, and where the results go.
#[derive(Clone, Copy)]
pub struct Lesson<'a> {
    /// The loss.
    pub distill: Distill,
    /// Tokens of the teacher per row; `V`, the size of the student's vocabulary: all.
    pub top: usize,
    /// Their ids in ascending order, and behind them that of the likeliest, u32 `[N, top + 1]`. `[N]`, the likeliest alone, where the
    /// teacher's tokens are all.
    pub ids: &'a wgpu::Buffer,
    /// Their log-probabilities, and behind them that of all other tokens, f32 `[N, top + 1]`.
    pub values: &'a wgpu::Buffer,
    /// For each row the divergence, and 1 where both models find the same token the likeliest, else 0: f32 `[N, 2]`, at the same places
    /// as the losses.
    pub results: &'a wgpu::Buffer,
}

/// Cross entropies as the chunk's losses, results and row status; the logits are lost.
pub fn forward(p: &mut Pass, chunk: &Chunk, lesson: &Lesson, verdicts: &Verdicts) {
    // The row status comes first: the softcap hides what is not finite.
    row_status::rows(p.rec.now(), chunk, verdicts);
    lesson.forward(p.rec.now(), chunk);
}

/// Cross entropies, results, row status, and `dlogits = coefficient·∂loss/∂logits` `[rows, V]`; the logits are lost.
pub fn backward(
    p: &mut Pass,
    chunk: &Chunk,
    lesson: &Lesson,
    verdicts: &Verdicts,
    coefficients: &wgpu::Buffer,
) -> Act {
    row_status::rows(p.rec.now(), chunk, verdicts);
    lesson.backward(p.rec.now(), chunk, coefficients);
    chunk.logits.clone().into()
}

impl Lesson<'_> {
    /// Cross entropies and results only.
    pub fn forward(&self, rec: &mut Recorder, chunk: &Chunk) {
        self.dispatch(rec, "forward", chunk, None);
    }

    /// Cross entropies, results, and `coefficient·∂loss/∂logits` in place of the logits.
    ///
    /// `coefficients`, f32, holds the gradient of the objective with respect to each row's loss, at the same places as the losses.
    pub fn backward(&self, rec: &mut Recorder, chunk: &Chunk, coefficients: &wgpu::Buffer) {
        self.dispatch(rec, "backward", chunk, Some(coefficients));
    }

    fn dispatch(
        &self,
        rec: &mut Recorder,
        entry: &'static str,
        chunk: &Chunk,
        coefficients: Option<&wgpu::Buffer>,
    ) {
        let params = params(chunk, self);
        let bound = |index, buffer| Binding { index, buffer, range: None };
        let mut bindings = vec![chunk.logits.bind(1), bound(2, chunk.targets.0), bound(3, chunk.losses.0)];
        bindings.extend(coefficients.map(|buffer| bound(4, buffer)));
        bindings.extend([bound(5, self.ids), bound(6, self.values), bound(7, self.results)]);
        rec.dispatch(kernel(rec, "distill/plain", entry), &params, &bindings, [params.rows, 1, 1]);
    }
}

/// Few rows, of many values each, share a device.
const THREADS: usize = 512;

/// A kernel of which a workgroup takes a row.
fn kernel(rec: &Recorder, file: &'static str, entry: &'static str) -> Kernel {
    Kernel::new(file, entry).with_size("THREADS", rec.gpu().threads_of_row(THREADS) as u32)
}

fn params(chunk: &Chunk, lesson: &Lesson) -> Params {
    let Distill { divergence, temperature, weight, sft_weight } = lesson.distill;
    let (divergence, beta) = match divergence {
        Divergence::ForwardKl => (0, 0.0),
        Divergence::ReverseKl => (1, 1.0),
        Divergence::Jsd { beta } => (2, beta),
    };
    Params {
        rows: chunk.rows as u32,
        vocab: chunk.vocab as u32,
        stride4: (chunk.logits.stride / 4) as u32,
        top: lesson.top as u32,
        target_offset: chunk.targets.1 as u32,
        loss_offset: chunk.losses.1 as u32,
        softcap: chunk.softcap.unwrap_or(0.0),
        divergence,
        beta: beta as f32,
        warmth: (1.0 / temperature) as f32,
        weight: weight as f32,
        sft_weight: sft_weight as f32,
    }
}
