//! How far a merged model is from its base with the adapter: Kullback-Leibler divergence and agreement of the logits.

use std::fmt;

use super::merged::MergeType;
use super::{Error, HeldOut};
use crate::adapter::lora::{self, Adapter};
use crate::base::Module;
use crate::base::{Base, GgmlType};
use crate::data::batch::MicroBatch;
use crate::gpu::{Gpu, GpuError};
use crate::model::Model;
use crate::model::plan::{self, Offload, Recompute};
use crate::talk::sampling::likeliest;
use crate::train::{Dropout, Trainer};

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

/// Logits of a model for the tokens of a [`HeldOut`].
pub struct Logits {
    vocab: usize,
    values: Vec<f32>,
    targets: Vec<u32>,
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

    /// Mean cross entropy of the tokens that follow, in nats.
    pub fn loss(&self) -> f64 {
        let rows = self.values.chunks_exact(self.vocab).zip(&self.targets);
        let losses = rows.map(|(row, &target)| normalizer(row) - f64::from(row[target as usize]));
        losses.sum::<f64>() / self.tokens() as f64
    }

    /// Norm of the difference from `other`.
    pub fn distance(&self, other: &Logits) -> f64 {
        let squares = self.values.iter().zip(&other.values).map(|(a, b)| f64::from(a - b).powi(2));
        squares.sum::<f64>().sqrt()
    }

    /// Norm.
    pub fn norm(&self) -> f64 {
        self.values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()
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
    let (zp, zq) = (normalizer(p), normalizer(q));
    let log = |x: f32, z: f64| f64::from(x) - z;
    p.iter().zip(q).map(|(&p, &q)| log(p, zp).exp() * (log(p, zp) - log(q, zq))).sum()
}

/// Logarithm of the sum of the exponentials of a row.
fn normalizer(row: &[f32]) -> f64 {
    let largest = row.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
    f64::from(largest) + row.iter().map(|&x| f64::from(x - largest).exp()).sum::<f64>().ln()
}

/// What an adapter does to its base on some text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// Of the base alone from the base with the adapter.
    pub drift: Drift,
    /// Loss of the base less loss with the adapter, in nats.
    pub improvement: f64,
    /// Loss of guessing among all tokens, `ln V`.
    pub blind: f64,
}

impl Effect {
    /// The effect between the logits of a base `alone` and those of the `adapted` one.
    pub fn between(alone: &Logits, adapted: &Logits) -> Effect {
        let improvement = alone.loss() - adapted.loss();
        Effect { drift: adapted.drift(alone), improvement, blind: (alone.vocab as f64).ln() }
    }

    /// The divergence above which the adapter is refused: `ln V`, and what the text itself explains.
    ///
    /// Above `ln V` the base finds what the adapted model would say less likely than tokens drawn at random. An adapter that is
    /// right about a text diverges there, in the mean, by just the loss that it saves.
    pub fn bound(&self) -> f64 {
        self.blind + self.improvement.max(0.0)
    }

    /// Refuses an adapter that does nothing, one whose numbers are none, and one that breaks its base; says why.
    pub fn check(&self) -> Result<(), String> {
        let Effect { drift: Drift { kl, tokens, .. }, improvement, blind } = *self;
        if !(kl.is_finite() && improvement.is_finite()) {
            return Err(format!(
                "with it the KL divergence from the base is {kl}, expected a finite number; lower the learning rate or the alpha"
            ));
        }
        if kl == 0.0 {
            return Err(format!(
                "it changes no logit of {tokens} tokens; use text of what it was trained for, or train it first"
            ));
        }
        if kl > self.bound() {
            return Err(format!(
                "with it the KL divergence from the base is {kl:.2} nats over {tokens} tokens, expected at most {:.2}: what blind \
                 guessing costs, {blind:.2}, and the {:.2} by which it lowers the loss; lower the learning rate or the alpha",
                self.bound(),
                improvement.max(0.0)
            ));
        }
        Ok(())
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (verb, by) = (if self.improvement < 0.0 { "raises" } else { "lowers" }, self.improvement.abs());
        write!(f, "{}, {verb} the loss by {by:.4}", self.drift)
    }
}

/// What merging cost and what it was to keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// Of the merged model from the base with the adapter.
    pub drift: Drift,
    /// What the adapter does.
    pub effect: Effect,
}

impl Verdict {
    /// The divergence above which the merge is refused.
    pub fn bound(&self) -> f64 {
        (MOST_OF_EFFECT * self.effect.drift.kl).max(ALWAYS_ALLOWED)
    }

    /// Refuses a merge that lost too much of the adapter, and an adapter that [`Effect::check`] refuses.
    pub fn check(&self, ty: MergeType) -> Result<(), Error> {
        let (drift, effect) = (self.drift.kl, self.effect.drift.kl);
        let refuse = |problem: String| Err(Error::Merge { problem });
        self.effect.check().or_else(refuse)?;
        if !drift.is_finite() {
            return refuse(format!(
                "the KL divergence is {drift}, expected a finite number; choose another type, such as bf16"
            ));
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

/// Compares `merged` with `base` and `adapter`, and those with `base` alone.
///
/// The models are on the device one after the other; as `offload` says, but for their experts.
pub async fn measure(
    gpu: &Gpu,
    base: &Base,
    adapter: &Adapter,
    merged: &Base,
    held_out: &HeldOut,
    offload: Offload,
) -> Result<Verdict, GpuError> {
    let [adapted, alone] = &logits(gpu, base, &[Some(adapter), None], held_out, offload).await?[..] else {
        unreachable!("as many as were asked for")
    };
    let found = logits(gpu, merged, &[None], held_out, offload).await?;
    Ok(Verdict { drift: adapted.drift(&found[0]), effect: Effect::between(alone, adapted) })
}

/// Logits of `base` with each of `adapters` (`None`: without).
pub async fn logits(
    gpu: &Gpu,
    base: &Base,
    adapters: &[Option<&Adapter>],
    held_out: &HeldOut,
    offload: Offload,
) -> Result<Vec<Logits>, GpuError> {
    let model = model(gpu, base, held_out, offload).await?;
    // A fresh adapter has no effect.
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

/// `base` on the device for passes over `held_out`. All experts stay in host memory under [`Offload::All`], none otherwise: there is no
/// limit here to ask for some.
pub(super) async fn model<'b>(
    gpu: &Gpu,
    base: &'b Base,
    held_out: &HeldOut,
    offload: Offload,
) -> Result<Model<'b>, GpuError> {
    let layers = if offload == Offload::All { plan::with_experts(base) } else { Vec::new() };
    Model::offloading(gpu, base, held_out.capacity().tokens, &layers, |_| ()).await
}

/// Logits of a trainer's model with its adapter as it is now.
pub async fn logits_of(trainer: &Trainer<'_>, held_out: &HeldOut) -> Result<Logits, GpuError> {
    let vocab = trainer.config().vocab;
    let (mut values, mut targets) = (Vec::new(), Vec::new());
    for batch in held_out.batches() {
        // Logits of any row may be read; losses are not asked for, and need no place.
        let inputs = MicroBatch { loss_rows: Vec::new(), targets: Vec::new(), ..batch.clone() };
        for rows in batch.loss_rows.chunks((LOGITS_AT_A_TIME / vocab).max(1)) {
            values.extend(trainer.logits(&inputs, rows).await?);
        }
        targets.extend(&batch.targets);
    }
    Ok(Logits { vocab, values, targets })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(rows: &[[f32; 2]]) -> Logits {
        Logits { vocab: 2, values: rows.concat(), targets: vec![0; rows.len()] }
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
    fn an_adapter_may_diverge_by_what_it_gains_and_no_further_than_blind_guessing() {
        // The base gives the first token 1/4, the adapted model 3/4: ln 4 and ln(4/3) of loss.
        let [alone, adapted] = [[0.0, 3.0f32.ln()], [3.0f32.ln(), 0.0]].map(|row| logits(&[row]));
        let effect = Effect::between(&alone, &adapted);
        assert!((alone.loss() - 4.0f64.ln()).abs() < 1e-7, "{}", alone.loss());
        assert!((effect.improvement - 3.0f64.ln()).abs() < 1e-7, "{effect}");
        assert!(
            (effect.drift.kl - 0.5 * 3.0f64.ln()).abs() < 1e-7,
            "{effect}: KL is of the adapted model's choices"
        );
        assert!((effect.bound() - 6.0f64.ln()).abs() < 1e-7, "ln 2 and ln 3: {}", effect.bound());
        assert_eq!(effect.check(), Ok(()));
        // The other way round nothing is gained.
        assert_eq!(Effect::between(&adapted, &alone).bound(), 2.0f64.ln());
        let broken = Effect::between(&logits(&[[0.0, 9.0]]), &logits(&[[9.0, 0.0]]));
        let error = Effect { improvement: -1.0, ..broken }.check().expect_err("broken");
        assert!(
            error.contains("from the base is 9.00 nats over 1 tokens, expected at most 0.69: what blind"),
            "{error}"
        );
        assert_eq!(Effect { improvement: 9.0, ..broken }.check(), Ok(()), "a gain explains it");
        let nan = Effect::between(&alone, &logits(&[[f32::NAN, 0.0]]));
        assert!(nan.check().expect_err("NaN").contains("from the base is NaN, expected a finite number"));
        let same = Effect::between(&alone, &alone);
        assert!(same.check().expect_err("no effect").contains("it changes no logit of 1 tokens"));
        assert!((alone.distance(&adapted) - 3.0f64.ln() * 2.0f64.sqrt()).abs() < 1e-7);
    }

    #[test]
    fn a_verdict_says_what_to_choose_instead() {
        let of = |kl| Drift { kl, worst_kl: kl, top1: 1.0, tokens: 1 };
        let check = |drift, effect, ty| {
            let effect = Effect { drift: of(effect), improvement: 0.0, blind: 9.0 };
            let verdict = Verdict { drift: of(drift), effect };
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
            (f64::NAN, 1.0, q4, "the KL divergence is NaN, expected a finite number; choose another type"),
            (0.3, 0.0, q4, "it changes no logit of 1 tokens"),
            (0.3, 9.5, q4, "is 9.50 nats over 1 tokens, expected at most 9.00"),
        ] {
            let error = check(drift, effect, ty).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
