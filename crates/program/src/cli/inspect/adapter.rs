//! `inspect` for adapters: their origin, and, if the base can be opened, what they adapt.

use std::path::Path;

use anyhow::Result;
use rullama_train::adapter::lora::Slot;
use rullama_train::adapter::{self, AdapterPath, Format, OtherBase};
use rullama_train::base::Base;
use rullama_train::run::names;
use serde_json::Value;

use crate::cli::output;

/// The variant of LoRA that the configuration names, unless it is the plain one.
fn variant(path: &Path) -> Option<&'static str> {
    let text = std::fs::read(path.join("adapter_config.json")).ok()?;
    let config: Value = serde_json::from_slice(&text).ok()?;
    (config["use_dora"] == true).then_some("DoRA")
}

/// Describes the adapter at `path`. Opens the base `named`, or the one that the adapter's files name.
pub fn describe(path: &Path, named: Option<&str>) -> Result<()> {
    let format = match adapter::detect(path)? {
        Format::Peft => "PEFT folder",
        Format::GgufLora => "GGUF LoRA",
        Format::Mlx => "mlx-lm folder",
        _ => "rullama-lora-v0 file",
    };
    let origin = adapter::origin(path)?;
    output::line("adapter", format_args!("{}: {format}", path.display()));
    let base_model = origin.base_model.as_deref();
    output::line("trained on", base_model.unwrap_or("unknown: the files do not name the base"));
    if let Some(variant) = variant(path) {
        output::line(
            "variant",
            format_args!("{variant}, which this program cannot load: it trains and loads plain LoRA"),
        );
    }
    if let Some(fingerprint) = &origin.fingerprint {
        output::line("identity", format_args!("{fingerprint} (of the base)"));
    }
    let base = match (named, base_model) {
        (Some(named), _) => Base::open(named)?,
        (None, Some(from_files)) => match Base::open(from_files) {
            Ok(base) => base,
            Err(error) => {
                output::line("notice", format_args!("{error}; or use --base BASE to see what it adapts"));
                return Ok(());
            }
        },
        (None, None) => {
            output::line("notice", "use --base BASE to see what it adapts");
            return Ok(());
        }
    };
    describe_matrices(path, &base)
}

/// Describes the matrices of the adapter at `path`, as `base` takes them.
fn describe_matrices(path: &Path, base: &Base) -> Result<()> {
    let loaded = adapter::load(&[AdapterPath::whole(path)], base, None, OtherBase::Allow)?;
    output::notices(&loaded.notices);
    let adapter = loaded.adapter;
    let slots: Vec<Slot> = adapter.pairs.keys().copied().collect();
    let mut layers: Vec<usize> = slots.iter().map(|slot| slot.layer).collect();
    layers.dedup();
    output::line(
        "matrices",
        format_args!(
            "{} in {} of {}, on {}",
            output::count(slots.len(), "pair"),
            output::count(layers.len(), "layer"),
            base.config().layers.len(),
            names(&slots)
        ),
    );
    let rank = adapter.rank;
    let alpha = adapter.alpha;
    let scale = adapter.scale();
    let parameters = output::count(adapter.parameters(), "parameter");
    output::line("size", format_args!("rank {rank}, alpha {alpha} (scale {scale:.4}), {parameters}"));
    let norm = |values: &mut dyn Iterator<Item = &f32>| {
        values.map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt()
    };
    let a = norm(&mut adapter.pairs.values().flat_map(|pair| &pair.a));
    let b = norm(&mut adapter.pairs.values().flat_map(|pair| &pair.b));
    let nothing = if b == 0.0 { " (the adapter has no effect)" } else { "" };
    output::line("norms", format_args!("A {a:.4}, B {b:.4}{nothing}"));
    Ok(())
}
