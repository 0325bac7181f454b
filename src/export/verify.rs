//! Whether an adapter that was written and read back still does to its base what it did in memory.

use std::fmt;

use super::drift::{Effect, logits_of};
use super::{Error, Format, HeldOut};
use crate::adapter::lora::Adapter;
use crate::gpu::{GpuError, Tier};
use crate::train::Trainer;

/// What rounding in the kernels may change, as a part of the logits' own norm: in f32, and with operands in f16.
const ROUNDING: [f64; 2] = [1e-6, 2e-3];

/// What adapters of several formats compute, beside the adapter in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Verification {
    /// What the adapter in memory does to its base.
    pub effect: Effect,
    /// Each of the others.
    pub formats: Vec<Fidelity>,
}

/// How far the logits of an adapter that was read back are from those of the adapter in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fidelity {
    /// What it was read from.
    pub format: Format,
    /// Norm of the difference, as a part of the norm of what the adapter changes.
    pub difference: f64,
    /// What the format's numbers and the kernels' rounding explain.
    pub allowed: f64,
}

impl fmt::Display for Fidelity {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.difference {
            0.0 => write!(f, "the same logits"),
            part => write!(f, "logits differ by {:.1e} of what the adapter changes", part),
        }
    }
}

impl Fidelity {
    /// Refuses a difference that the format's numbers do not explain.
    pub fn check(&self) -> Result<(), Error> {
        let Fidelity { format, difference, allowed } = *self;
        // A NaN is no difference that is small enough.
        if difference <= allowed {
            return Ok(());
        }
        let next = match format {
            Format::GgufLoraF16 => "F16 is too coarse for it; choose gguf-lora",
            _ => "check the disk and export again",
        };
        Err(Error::Adapter {
            problem: format!(
                "read back from {}, its logits differ by {difference:.1e} of what the adapter changes, expected at most \
                 {allowed:.1e}; {next}",
                format.name()
            ),
        })
    }
}

/// The part of an adapter's effect that a format's numbers may cost: 3e-6 and, in F16, 3.5e-4 on the golden models (tests/drift.rs).
fn precision(format: Format) -> f64 {
    match format {
        // Every value is the same; only the scale may be rounded to f32.
        Format::Peft
        | Format::PeftConditionalGeneration
        | Format::GgufLora
        | Format::Mlx
        | Format::RullamaV0 => 1e-5,
        Format::GgufLoraF16 => 5e-3,
    }
}

/// Runs `trainer`'s base with `adapter`, alone, and with each of `read`. They have the slots and the rank of the trainer's
/// adapter, in whose place the last of them stays.
pub async fn verify(
    trainer: &mut Trainer<'_>,
    adapter: &Adapter,
    read: &[(Format, Adapter)],
    held_out: &HeldOut,
) -> Result<Verification, GpuError> {
    trainer.set_adapter(adapter);
    let adapted = logits_of(trainer, held_out).await?;
    let mut nothing = adapter.clone();
    nothing.pairs.values_mut().for_each(|pair| pair.b.fill(0.0));
    trainer.set_adapter(&nothing);
    let alone = logits_of(trainer, held_out).await?;
    let effect = Effect::between(&alone, &adapted);
    let (change, norm) = (adapted.distance(&alone), adapted.norm());
    let rounding = ROUNDING[usize::from(trainer.tier() != Tier::F32)] * norm / change;
    let mut formats = Vec::new();
    for (format, read) in read {
        // The same numbers give the same logits.
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
