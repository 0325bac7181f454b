//! An adapter of any format: where it came from, and, beside its base, what it adapts.

use std::path::Path;

use anyhow::Result;
use rullama_train::adapter::lora::Slot;
use rullama_train::adapter::{self, AdapterPath, Format, OtherBase};
use rullama_train::base::Base;
use rullama_train::run::names;

use super::super::show;

/// Describes the adapter at `path`, beside the base `named` or the one that the adapter names, where that can be opened.
pub fn describe(path: &Path, named: Option<&str>) -> Result<()> {
    let format = match adapter::detect(path)? {
        Format::Peft => "PEFT folder",
        Format::GgufLora => "GGUF LoRA",
        Format::Mlx => "mlx-lm folder",
        _ => "rullama-lora-v0 file",
    };
    let origin = adapter::origin(path)?;
    show::line("adapter", format_args!("{}: {format}", path.display()));
    let base_model = origin.base_model.as_deref();
    show::line("trained on", base_model.unwrap_or("a base that its files do not name"));
    if let Some(fingerprint) = &origin.fingerprint {
        show::line("identity", format_args!("{fingerprint}, its base's"));
    }
    let base = match (named, base_model) {
        (Some(named), _) => Base::open(named)?,
        (None, Some(of_files)) => match Base::open(of_files) {
            Ok(base) => base,
            Err(error) => {
                show::line("notice", format_args!("{error}, or with --base, to see what it adapts"));
                return Ok(());
            }
        },
        (None, None) => {
            show::line("notice", "--base BASE shows what it adapts");
            return Ok(());
        }
    };
    let loaded = adapter::load(&[AdapterPath::whole(path)], &base, None, OtherBase::Allow)?;
    show::notices(&loaded.notices);
    let adapter = loaded.adapter;
    let slots: Vec<Slot> = adapter.pairs.keys().copied().collect();
    let mut layers: Vec<usize> = slots.iter().map(|slot| slot.layer).collect();
    layers.dedup();
    show::line(
        "matrices",
        format_args!(
            "{} in {} of {} on {}",
            show::count(slots.len(), "pair"),
            show::count(layers.len(), "layer"),
            base.config().layers.len(),
            names(&slots)
        ),
    );
    let (rank, alpha, scale) = (adapter.rank, adapter.alpha, adapter.scale());
    let parameters = show::count(adapter.parameters(), "parameter");
    show::line("size", format_args!("rank {rank}, alpha {alpha} (scale {scale:.4}), {parameters}"));
    let norm = |values: &mut dyn Iterator<Item = &f32>| {
        values.map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt()
    };
    let a = norm(&mut adapter.pairs.values().flat_map(|pair| &pair.a));
    let b = norm(&mut adapter.pairs.values().flat_map(|pair| &pair.b));
    let nothing = if b == 0.0 { ": it changes nothing" } else { "" };
    show::line("norms", format_args!("A {a:.4}, B {b:.4}{nothing}"));
    Ok(())
}
