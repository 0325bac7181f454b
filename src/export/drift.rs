//! How far a merged model is from its base with the adapter: Kullback-Leibler divergence and agreement of the logits.

use std::fmt;

use super::Error;
use super::merged::MergeType;
use crate::batch::{IGNORE, MicroBatch, Sample};
use crate::gpu::{Gpu, GpuError};
use crate::lora::{self, Adapter, Module};
use crate::model::Model;
use crate::model::plan::Recompute;
use crate::sampling::likeliest;
use crate::train::{Capacity, Dropout, Trainer};
use crate::weights::{Base, GgmlType};

/// Logits that are kept for the comparison, in values: 512 MiB, 512 tokens of a vocabulary of 262 144.
const MOST_LOGITS: usize = 1 << 27;
/// Logits that are read back at a time, in values.
const LOGITS_AT_A_TIME: usize = 1 << 24;
/// A merge is refused where its divergence exceeds this part of what the adapter itself changes…
pub const MOST_OF_EFFECT: f64 = 0.25;
/// …and this many nats, below which quantization as such lies: files of 4 bits differ by more from their originals.
pub const ALWAYS_ALLOWED: f64 = 0.01;

/// Differences between two models' next-token distributions, over some tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// Mean of KL(reference ‖ other), in nats.
    pub kl: f64,
    /// The largest of them.
    pub worst_kl: f64,
    /// Part of the tokens for which both think the same next token the likeliest.
    pub top1: f64,
    /// Tokens compared.
    pub tokens: usize,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let top1 = 100.0 * self.top1;
        write!(
            f,
            "KL divergence {:.3e} (at most {:.3e}), same first choice {top1:.2} %",
            self.kl, self.worst_kl
        )
    }
}

/// Logits of a model for some tokens of some samples.
pub struct Logits {
    vocab: usize,
    values: Vec<f32>,
}

impl Logits {
    /// `[tokens, V]`, after the softcap.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Tokens.
    pub fn tokens(&self) -> usize {
        self.values.len() / self.vocab
    }

    /// The drift of `other`, which is of the same tokens, from these.
    pub fn drift(&self, other: &Logits) -> Drift {
        assert_eq!((self.vocab, self.values.len()), (other.vocab, other.values.len()), "the same tokens");
        let rows = self.values.chunks_exact(self.vocab).zip(other.values.chunks_exact(self.vocab));
        let mut drift = Drift { kl: 0.0, worst_kl: 0.0, top1: 0.0, tokens: self.tokens() };
        for (p, q) in rows {
            let kl = divergence(p, q);
            drift.kl += kl;
            // A NaN wins, and stays.
            if kl > drift.worst_kl || kl.is_nan() {
                drift.worst_kl = kl;
            }
            drift.top1 += f64::from(u8::from(likeliest(p) == likeliest(q)));
        }
        let tokens = self.tokens().max(1) as f64;
        Drift { kl: drift.kl / tokens, top1: drift.top1 / tokens, ..drift }
    }
}

/// KL(p ‖ q) of the softmax of two rows of logits.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let normalizer = |row: &[f32]| {
        let largest = row.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
        f64::from(largest) + row.iter().map(|&x| f64::from(x - largest).exp()).sum::<f64>().ln()
    };
    let (zp, zq) = (normalizer(p), normalizer(q));
    let log = |x: f32, z: f64| f64::from(x) - z;
    p.iter().zip(q).map(|(&p, &q)| log(p, zp).exp() * (log(p, zp) - log(q, zq))).sum()
}

/// What merging cost and what it was to keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// Of the merged model from the base with the adapter.
    pub drift: Drift,
    /// Of the base alone from the base with the adapter: what the adapter does.
    pub effect: Drift,
}

impl Verdict {
    /// The divergence above which the merge is refused.
    pub fn bound(&self) -> f64 {
        (MOST_OF_EFFECT * self.effect.kl).max(ALWAYS_ALLOWED)
    }

    /// Refuses a merge that lost too much of the adapter, or an adapter that does nothing.
    pub fn check(&self, ty: MergeType) -> Result<(), Error> {
        let (drift, effect) = (self.drift.kl, self.effect.kl);
        let refuse = |problem: String| Err(Error::Merge { problem });
        if !(drift.is_finite() && effect.is_finite()) {
            return refuse(format!(
                "the KL divergence is {drift} (the adapter's own effect {effect}), expected a finite number; choose \
                 another type, such as bf16, or another adapter"
            ));
        }
        if effect == 0.0 {
            return refuse(
                "on these samples it changes no logit; use samples of what it was trained for".into(),
            );
        }
        if drift > self.bound() {
            let finer = match ty {
                MergeType::To(GgmlType::Q8_0) | MergeType::Auto => "f16",
                MergeType::To(GgmlType::F16 | GgmlType::BF16) => "f32",
                _ => "q8_0",
            };
            return refuse(format!(
                "stored so, the model's KL divergence from base and adapter is {drift:.3e} nats, more than {:.3e} (the \
                 adapter's own effect is {effect:.3e}); choose the type {finer}",
                self.bound()
            ));
        }
        Ok(())
    }
}

/// Compares `merged` with `base` and `adapter`, and those with `base` alone, where `samples` carry loss.
///
/// The models are on the device one after the other. Fails on samples without a token that carries loss.
pub async fn measure(
    gpu: &Gpu,
    base: &Base,
    adapter: &Adapter,
    merged: &Base,
    samples: &[Sample],
) -> Result<Verdict, MeasureError> {
    let [adapted, alone] = &logits(gpu, base, &[Some(adapter), None], samples).await?[..] else {
        unreachable!("as many as were asked for")
    };
    if adapted.tokens() == 0 {
        return Err(MeasureError::NoTokens);
    }
    let found = logits(gpu, merged, &[None], samples).await?;
    Ok(Verdict { drift: adapted.drift(&found[0]), effect: adapted.drift(alone) })
}

/// Why the drift cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The device failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// There is nothing to compare.
    #[error(
        "the samples hold no token that carries loss, so that there is nothing to compare; name other data"
    )]
    NoTokens,
}

/// Logits of `base` with each of `adapters` (`None`: without) where the samples carry loss: the first tokens, as many as
/// fit into half a gigabyte.
pub async fn logits(
    gpu: &Gpu,
    base: &Base,
    adapters: &[Option<&Adapter>],
    samples: &[Sample],
) -> Result<Vec<Logits>, GpuError> {
    let vocab = base.config().vocab;
    let batches = batches(samples, MOST_LOGITS / vocab);
    let longest = batches.iter().map(MicroBatch::len).max().unwrap_or(1);
    let chunk = (LOGITS_AT_A_TIME / vocab).max(1);
    let capacity = Capacity { tokens: longest, loss_tokens: 1, step_loss_tokens: longest };
    let model = Model::load(gpu, base, longest)?;
    let dropout = Dropout { probability: 0.0, seed: 0 };
    // A fresh adapter has no effect.
    let none = Adapter::init(&lora::slots(base.config(), &[Module::AttnQ]), 1, 1.0, false, 0);
    let mut all = Vec::new();
    for adapter in adapters {
        let adapter = adapter.unwrap_or(&none);
        let trainer = Trainer::new(gpu, &model, adapter, capacity, dropout, Recompute::Always)?;
        let mut values = Vec::new();
        for batch in &batches {
            for rows in batch.loss_rows.chunks(chunk) {
                values.extend(trainer.logits(batch, rows).await?);
            }
        }
        all.push(Logits { vocab, values });
    }
    Ok(all)
}

/// One micro-batch a sample, up to `most` tokens that carry loss.
fn batches(samples: &[Sample], most: usize) -> Vec<MicroBatch> {
    let mut left = most;
    let mut batches = Vec::new();
    for sample in samples.iter().filter(|s| s.labels.iter().skip(1).any(|&l| l != IGNORE)) {
        let mut batch = MicroBatch::pack([sample]);
        batch.loss_rows.truncate(left);
        left -= batch.loss_rows.len();
        batches.push(batch);
        if left == 0 {
            break;
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(rows: &[[f32; 2]]) -> Logits {
        Logits { vocab: 2, values: rows.concat() }
    }

    #[test]
    fn the_divergence_is_the_textbook_one() {
        // Halves against 3/4 and 1/4: ½·ln(½ / ¾) + ½·ln(½ / ¼) = ½·ln(4/3) on the first token, nothing on the second,
        // where all logits are merely moved.
        let drift = logits(&[[0.0, 0.0], [5.0, 1.0]]).drift(&logits(&[[3.0f32.ln(), 0.0], [1004.0, 1000.0]]));
        let expected = 0.5 * (4.0f64 / 3.0).ln();
        assert!((drift.worst_kl - expected).abs() < 1e-7, "{drift:?}, expected {expected}");
        assert!((drift.kl - expected / 2.0).abs() < 1e-7, "{drift:?}");
        assert_eq!((drift.top1, drift.tokens), (1.0, 2));
        // The other direction: ¾·ln(¾ / ½) + ¼·ln(¼ / ½).
        let drift = logits(&[[3.0f32.ln(), 0.0]]).drift(&logits(&[[0.0, 1e-3]]));
        let expected = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        assert!((drift.kl - expected).abs() < 1e-3, "{drift:?}, expected {expected}");
        assert_eq!(drift.top1, 0.0);
        assert!(logits(&[[f32::NAN, 0.0], [0.0, 0.0]]).drift(&logits(&[[0.0; 2]; 2])).worst_kl.is_nan());
    }

    #[test]
    fn a_verdict_says_what_to_choose_instead() {
        let of = |kl| Drift { kl, worst_kl: kl, top1: 1.0, tokens: 1 };
        let check = |drift, effect, ty| {
            let verdict = Verdict { drift: of(drift), effect: of(effect) };
            verdict.check(ty).map_err(|e| e.to_string())
        };
        let q4 = MergeType::To(GgmlType::Q4_K);
        assert_eq!(check(0.2, 1.0, q4), Ok(()));
        assert_eq!(check(0.009, 0.01, q4), Ok(()), "less than quantization itself costs");
        for (drift, effect, ty, expected) in [
            (
                0.3,
                1.0,
                q4,
                "is 3.000e-1 nats, more than 2.500e-1 (the adapter's own effect is 1.000e0); choose the type q8_0",
            ),
            (0.3, 1.0, MergeType::Auto, "choose the type f16"),
            (
                f64::NAN,
                1.0,
                q4,
                "the KL divergence is NaN (the adapter's own effect 1), expected a finite number",
            ),
            (0.3, 0.0, q4, "it changes no logit"),
        ] {
            let error = check(drift, effect, ty).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
