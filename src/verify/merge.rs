//! Compares a merged model with its base and adapter.

use super::{Divergence, Effect, HeldOut, logits};
use crate::adapter::Error;
use crate::adapter::lora::Adapter;
use crate::adapter::merge::MergeType;
use crate::base::{Base, GgmlType};
use crate::gpu::{Gpu, GpuError};
use crate::model::plan::Offload;

/// Largest accepted divergence of a merged model, as a fraction of the adapter's own effect.
pub const MAX_FRACTION_OF_EFFECT: f64 = 0.25;
/// Divergence in nats that is always accepted: 4-bit quantization alone costs more.
pub const ALWAYS_ACCEPTED: f64 = 0.01;

/// Distance of a merged model from its base with the adapter, beside the adapter's own effect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MergeCheck {
    /// Divergence of the merged model from the base with the adapter.
    pub divergence: Divergence,
    /// The effect of the adapter itself on the base.
    pub effect: Effect,
}

impl MergeCheck {
    /// The largest divergence that is accepted, in nats.
    pub fn bound(&self) -> f64 {
        (MAX_FRACTION_OF_EFFECT * self.effect.divergence.kl).max(ALWAYS_ACCEPTED)
    }

    /// Rejects a merge that lost too much of the adapter, and an adapter that [`Effect::check`] rejects.
    ///
    /// `ty` is the merge's weight type. The error suggests a finer one.
    pub fn check(&self, ty: MergeType) -> Result<(), Error> {
        let refuse = |problem: String| Err(Error::Merge { problem });
        self.effect.check().or_else(refuse)?;
        let found = self.divergence.kl;
        if !found.is_finite() {
            return refuse(format!(
                "the KL divergence is {found}, expected a finite number; choose another type, such as bf16"
            ));
        }
        if found > self.bound() {
            let finer = match ty {
                MergeType::To(GgmlType::Q8_0) | MergeType::Auto => "f16",
                MergeType::To(GgmlType::F16 | GgmlType::BF16) => "f32",
                _ => "q8_0",
            };
            return refuse(format!(
                "the merged model's KL divergence from base and adapter is {found:.3e} nats, expected at most {:.3e} (the \
                 adapter's own effect is {:.3e}); choose the type {finer}",
                self.bound(),
                self.effect.divergence.kl
            ));
        }
        Ok(())
    }
}

/// Compares `merged` with `base` and `adapter`, and those with `base` alone.
///
/// The models are uploaded one after the other. `offload` decides where their experts are kept.
pub async fn compare_merged(
    gpu: &Gpu,
    base: &Base,
    adapter: &Adapter,
    merged: &Base,
    held_out: &HeldOut,
    offload: Offload,
) -> Result<MergeCheck, GpuError> {
    let [adapted, alone] = &logits(gpu, base, &[Some(adapter), None], held_out, offload).await?[..] else {
        unreachable!("one result per adapter")
    };
    let found = logits(gpu, merged, &[None], held_out, offload).await?;
    Ok(MergeCheck {
        divergence: Divergence::between(adapted, &found[0]),
        effect: Effect::between(alone, adapted),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejected_merge_suggests_a_finer_type() {
        let of = |kl| Divergence { kl, worst_kl: kl, top1: 1.0, tokens: 1 };
        let check = |divergence, effect, ty| {
            let effect = Effect { divergence: of(effect), improvement: 0.0, uniform_loss: 9.0 };
            let checked = MergeCheck { divergence: of(divergence), effect };
            checked.check(ty).map_err(|e| e.to_string())
        };
        let q4 = MergeType::To(GgmlType::Q4_K);
        assert_eq!(check(0.2, 1.0, q4), Ok(()));
        assert_eq!(check(0.009, 0.01, q4), Ok(()), "quantization alone costs more");
        for (divergence, effect, ty, expected) in [
            (
                0.3,
                1.0,
                q4,
                "is 3.000e-1 nats, expected at most 2.500e-1 (the adapter's own effect is 1.000e0); choose the type q8_0",
            ),
            (0.3, 1.0, MergeType::Auto, "choose the type f16"),
            (f64::NAN, 1.0, q4, "the KL divergence is NaN, expected a finite number; choose another type"),
            (0.3, 0.0, q4, "it changes no logit of 1 tokens"),
            (0.3, 9.5, q4, "is 9.50 nats over 1 tokens, expected at most 9.00"),
        ] {
            let error = check(divergence, effect, ty).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
