//! Logits of a base, with and without adapters, for the tokens on which models are compared.

use super::HeldOut;
use crate::adapter::lora::{self, Adapter};
use crate::base::Base;
use crate::base::Module;
use crate::data::batch::MicroBatch;
use crate::gpu::{Gpu, GpuError};
use crate::model::Model;
use crate::model::plan::{Offload, Recompute};
use crate::train::{Dropout, Trainer};

/// Number of values that are read from the device at a time.
const VALUES_PER_READ: usize = 1 << 24;

/// Logits of a model for the tokens of a [`HeldOut`].
pub struct Logits {
    vocab: usize,
    values: Vec<f32>,
    targets: Vec<u32>,
}

impl Logits {
    #[cfg(test)]
    pub(super) fn for_test(rows: &[[f32; 2]]) -> Logits {
        Logits { vocab: 2, values: rows.concat(), targets: vec![0; rows.len()] }
    }

    /// Values `[tokens, V]`, after the softcap.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.values.len() / self.vocab
    }

    /// Size of the vocabulary, `V`.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// One row of `V` logits per token.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.vocab)
    }

    /// Mean cross entropy of the tokens that follow, in nats.
    pub fn loss(&self) -> f64 {
        let rows = self.rows().zip(&self.targets);
        let losses = rows.map(|(row, &target)| log_sum_exp(row) - f64::from(row[target as usize]));
        losses.sum::<f64>() / self.tokens() as f64
    }

    /// L2 norm of the difference from `other`.
    pub fn distance(&self, other: &Logits) -> f64 {
        let squares = self.values.iter().zip(&other.values).map(|(a, b)| f64::from(a - b).powi(2));
        squares.sum::<f64>().sqrt()
    }

    /// L2 norm.
    pub fn norm(&self) -> f64 {
        self.values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()
    }
}

/// Logarithm of the sum of the exponentials of a row.
pub(super) fn log_sum_exp(row: &[f32]) -> f64 {
    let largest = row.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
    f64::from(largest) + row.iter().map(|&x| f64::from(x - largest).exp()).sum::<f64>().ln()
}

/// Computes the logits of `base` with each of `adapters`; `None` is the base alone.
pub async fn logits(
    gpu: &Gpu,
    base: &Base,
    adapters: &[Option<&Adapter>],
    held_out: &HeldOut,
    offload: Offload,
) -> Result<Vec<Logits>, GpuError> {
    let model = model(gpu, base, held_out, offload).await?;
    // A fresh adapter has no effect: its B is zero.
    let none = Adapter::init(&lora::slots(base.config(), &[Module::AttnQ]), 1, 1.0, false, 0);
    let mut all = Vec::new();
    for adapter in adapters {
        let adapter = adapter.unwrap_or(&none);
        let trainer =
            Trainer::new(gpu, &model, adapter, held_out.capacity(), Dropout::NONE, Recompute::Always)?;
        all.push(logits_of(&trainer, held_out).await?);
    }
    Ok(all)
}

/// Uploads `base` for passes over `held_out`.
///
/// What `offload` leaves open stays on the device: no memory limit applies here.
pub(super) async fn model<'b>(
    gpu: &Gpu,
    base: &'b Base,
    held_out: &HeldOut,
    offload: Offload,
) -> Result<Model<'b>, GpuError> {
    let on_host = offload.without_limit(base);
    Model::offloading(gpu, base, held_out.capacity().tokens, &on_host, |_| ()).await
}

/// Computes the logits of a trainer's model with its current adapter.
pub async fn logits_of(trainer: &Trainer<'_>, held_out: &HeldOut) -> Result<Logits, GpuError> {
    let vocab = trainer.config().vocab;
    let mut values = Vec::new();
    let mut targets = Vec::new();
    for batch in held_out.batches() {
        // Without loss rows, the trainer reserves no memory for losses, which are not needed here.
        let inputs = MicroBatch { loss_rows: Vec::new(), targets: Vec::new(), ..batch.clone() };
        for rows in batch.loss_rows.chunks((VALUES_PER_READ / vocab).max(1)) {
            values.extend(trainer.logits(&inputs, rows).await?);
        }
        targets.extend(&batch.targets);
    }
    Ok(Logits { vocab, values, targets })
}
