//! Compares adapters that were reloaded from files with the adapter in memory, by their logits.

use std::fmt;

use super::{Effect, HeldOut, Logits, logits_of};
use crate::adapter::lora::Adapter;
use crate::adapter::{Error, Format};
use crate::gpu::{GpuError, Tier};
use crate::train::Trainer;

/// Rounding of f32 kernels, as a fraction of the norm of the logits.
const ROUNDING_F32: f64 = 1e-6;
/// Rounding of kernels with f16 operands, as a fraction of the norm of the logits.
const ROUNDING_F16: f64 = 2e-3;

/// The adapter in memory and the reloaded adapters, compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Verification {
    /// The effect of the adapter in memory on its base.
    pub effect: Effect,
    /// One result per reloaded adapter.
    pub formats: Vec<Fidelity>,
}

/// Distance of the logits of an adapter reloaded from a file from those of the adapter in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fidelity {
    /// The file's format.
    pub format: Format,
    /// Norm of the difference, as a fraction of the norm of the adapter's change of the logits.
    pub difference: f64,
    /// The difference that the format's precision and the kernels' rounding can explain.
    pub allowed: f64,
}

impl fmt::Display for Fidelity {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.difference {
            0.0 => write!(f, "identical logits"),
            part => write!(f, "logits differ by {part:.1e} of the adapter's effect"),
        }
    }
}

impl Fidelity {
    /// Rejects a difference that the format's precision cannot explain.
    pub fn check(&self) -> Result<(), Error> {
        let Fidelity { format, difference, allowed } = *self;
        // The comparison is also false for a NaN.
        if difference <= allowed {
            return Ok(());
        }
        let next = match format {
            Format::GgufLoraF16 => "F16 is too coarse for this adapter; choose gguf-lora",
            _ => "check the disk and export again",
        };
        Err(Error::Adapter {
            problem: format!(
                "reloaded from {}, its logits differ by {difference:.1e} of the adapter's effect, expected at most {allowed:.1e}; {next}",
                format.name()
            ),
        })
    }
}

/// The fraction of an adapter's effect that a format's precision may cost.
///
/// Measured on the golden models (tests/verify.rs): 3e-6, and 3.5e-4 in F16.
fn precision(format: Format) -> f64 {
    match format {
        // Every value is exact; only the scale may be rounded to f32.
        Format::Peft
        | Format::PeftConditionalGeneration
        | Format::GgufLora
        | Format::Mlx
        | Format::RullamaV0 => 1e-5,
        Format::GgufLoraF16 => 5e-3,
    }
}

/// The logits of the trainer's base with `adapter`, and of the base alone. Afterwards the trainer holds an adapter without effect.
async fn with_and_without(
    trainer: &mut Trainer<'_>,
    adapter: &Adapter,
    held_out: &HeldOut,
) -> Result<[Logits; 2], GpuError> {
    trainer.set_adapter(adapter);
    let adapted = logits_of(trainer, held_out).await?;
    let mut nothing = adapter.clone();
    nothing.pairs.values_mut().for_each(|pair| pair.b.fill(0.0));
    trainer.set_adapter(&nothing);
    Ok([adapted, logits_of(trainer, held_out).await?])
}

/// The effect of `adapter`, which has the slots and the rank of the trainer's, on its base. Afterwards the trainer holds an adapter without effect.
pub async fn effect_of(
    trainer: &mut Trainer<'_>,
    adapter: &Adapter,
    held_out: &HeldOut,
) -> Result<Effect, GpuError> {
    let [adapted, alone] = with_and_without(trainer, adapter, held_out).await?;
    Ok(Effect::between(&alone, &adapted))
}

/// Runs the trainer's base with `adapter`, alone, and with each adapter in `read`, and compares the logits.
///
/// All adapters have the slots and the rank of the trainer's adapter. Afterwards the trainer holds an unspecified one of them.
pub async fn verify(
    trainer: &mut Trainer<'_>,
    adapter: &Adapter,
    read: &[(Format, Adapter)],
    held_out: &HeldOut,
) -> Result<Verification, GpuError> {
    let [adapted, alone] = with_and_without(trainer, adapter, held_out).await?;
    let effect = Effect::between(&alone, &adapted);
    let change = adapted.distance(&alone);
    let norm = adapted.norm();
    let rounding = if trainer.tier() == Tier::F32 { ROUNDING_F32 } else { ROUNDING_F16 } * norm / change;
    let mut formats = Vec::new();
    for (format, read) in read {
        // Equal values give equal logits.
        let same = read.pairs == adapter.pairs && read.scale() as f32 == adapter.scale() as f32;
        let mut difference = 0.0;
        if !same {
            trainer.set_adapter(read);
            difference = logits_of(trainer, held_out).await?.distance(&adapted) / change;
        }
        formats.push(Fidelity { format: *format, difference, allowed: precision(*format) + rounding });
    }
    Ok(Verification { effect, formats })
}
