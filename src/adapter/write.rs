//! Writes adapters in every format, and reads back what was written.

use std::path::{Path, PathBuf};

use super::formats::layout::{Half, MatrixLayout};
use super::formats::{gguf, mlx, peft, rullama};
use super::lora::{Adapter, Slot};
use super::{Error, Format, WriteOptions};
use crate::base::config::Config;
use crate::files;

/// Writes an adapter of the model `config` to [`Format::place`] of the folder `dir`, and returns that path.
///
/// Fails if the adapter is not finite or has no effect ([`check`]). The file is reloaded: names and shapes must fit the model,
/// every value must be equal (in F16: rounded), and the scale must be equal to the precision of f32.
/// [`write_verified`](crate::verify::write_verified) also compares the logits.
pub fn write(
    dir: &Path,
    format: Format,
    adapter: &Adapter,
    config: &Config,
    options: &WriteOptions,
) -> Result<PathBuf, Error> {
    write_and_read(dir, format, adapter, config, options).map(|(path, _)| path)
}

/// Writes one format, and returns its path and the reloaded adapter.
pub(crate) fn write_and_read(
    dir: &Path,
    format: Format,
    adapter: &Adapter,
    config: &Config,
    options: &WriteOptions,
) -> Result<(PathBuf, Adapter), Error> {
    check(adapter)?;
    let path = format.place(dir);
    let other = match format {
        Format::Peft | Format::PeftConditionalGeneration => Some(mlx::TENSORS),
        Format::Mlx => Some(peft::TENSORS),
        _ => None,
    };
    if let Some(other) = other.filter(|other| files::exists(&path.join(other))) {
        let problem = format!(
            "{} contains {other}, whose adapter_config.json would be overwritten; choose another folder",
            path.display()
        );
        return Err(Error::Adapter { problem });
    }
    let peft = |naming| peft::write(&path, adapter, naming, options);
    let read = match format {
        Format::Peft => {
            peft(peft::Naming::causal_lm(config)).and_then(|()| peft::read_slots(&path, config, None))
        }
        Format::PeftConditionalGeneration => peft(peft::Naming::conditional_generation(config))
            .and_then(|()| peft::read_slots(&path, config, None)),
        Format::GgufLora => gguf::write(&path, adapter, gguf::Precision::F32, config, options)
            .and_then(|()| gguf::read(&path, config, None)),
        Format::GgufLoraF16 => gguf::write(&path, adapter, gguf::Precision::F16, config, options)
            .and_then(|()| gguf::read(&path, config, None)),
        Format::Mlx => {
            mlx::write(&path, adapter, config, options).and_then(|()| mlx::read(&path, config, None))
        }
        Format::RullamaV0 => {
            rullama::write(&path, adapter, options).and_then(|()| rullama::read(&path, config, None))
        }
    }?;
    compare(adapter, &read, format, config)
        .map_err(|problem| Error::Changed { path: path.clone(), problem })?;
    Ok((path, read))
}

/// Rejects an adapter that should not be written: without matrices, with values or a scale that are not finite, or without
/// effect because every `B` or the scale is zero.
pub fn check(adapter: &Adapter) -> Result<(), Error> {
    let refuse = |problem: String| Err(Error::Adapter { problem });
    if adapter.pairs.is_empty() {
        return refuse("it has no matrices; choose at least one target module".into());
    }
    let scale = adapter.scale();
    if !scale.is_finite() || scale == 0.0 {
        return refuse(format!("its scale is {scale}, expected a number other than 0; choose another alpha"));
    }
    for (slot, pair) in &adapter.pairs {
        for (half, values) in [("A", &pair.a), ("B", &pair.b)] {
            if let Some(value) = values.iter().find(|v| !v.is_finite()) {
                return refuse(format!(
                    "{half} of {} contains {value}: training diverged; lower the learning rate",
                    slot.name()
                ));
            }
        }
    }
    if adapter.pairs.values().all(|p| p.b.iter().all(|b| *b == 0.0)) {
        return refuse("every B is zero, so it has no effect; train it first".into());
    }
    Ok(())
}

/// Compares an adapter with the one reloaded from its file. The error describes the first difference.
fn compare(written: &Adapter, read: &Adapter, format: Format, config: &Config) -> Result<(), String> {
    let rank = written.rank;
    let rounded = format == Format::GgufLoraF16;
    // GGUF LoRA scales the `B` of experts, which rounds. All other values are stored unchanged.
    let expected = |half: Half, values: &'_ [f32], slot: &Slot| match format {
        Format::GgufLora | Format::GgufLoraF16 => {
            MatrixLayout::Gguf.round_trip(half, values, (rank, rounded), slot, config)
        }
        _ => values.to_vec(),
    };
    if read.rank != written.rank || !read.pairs.keys().eq(written.pairs.keys()) {
        return Err("different matrices".into());
    }
    // Some formats store alpha or the scale in f32.
    if !same_scale(written, read) {
        return Err(format!("the scale {} instead of {}", read.scale(), written.scale()));
    }
    for (slot, pair) in &written.pairs {
        let found = &read.pairs[slot];
        for (half, written, read) in [(Half::A, &pair.a, &found.a), (Half::B, &pair.b, &found.b)] {
            let expected = expected(half, written, slot);
            let differs = expected.iter().zip(read).position(|(w, r)| w.to_bits() != r.to_bits());
            if let Some(i) = differs {
                return Err(format!("{} instead of {} in {half:?} of {}", read[i], written[i], slot.name()));
            }
        }
    }
    if read.pairs.values().all(|p| p.b.iter().all(|b| *b == 0.0)) {
        return Err("only zeros in every B: F16 is too coarse for this adapter".into());
    }
    Ok(())
}

/// Whether the scales of two adapters are equal to the precision of f32. Not every format stores alpha exactly.
pub fn same_scale(a: &Adapter, b: &Adapter) -> bool {
    (a.scale() - b.scale()).abs() <= a.scale().abs() * f64::from(f32::EPSILON)
}
