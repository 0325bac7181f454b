//! Reads `adapter_model.safetensors`.

use std::path::Path;

use super::config::read_file;
use super::{AdapterConfig, Naming, TENSORS, read_config};
use crate::adapter::Error;
use crate::adapter::formats::assemble::{Names, Place, RankScale, assemble, layer_and_rest};
use crate::adapter::formats::layout::{Half, MatrixLayout};
use crate::adapter::formats::safetensors_file;
use crate::adapter::lora::{Adapter, Slot};
use crate::base::Module;
use crate::base::config::Config;

/// Reads a PEFT folder with exactly `slots` for the model `config`, in any [`Naming`].
///
/// F16 and BF16 are converted to F32, which is exact. For errors see [`read_any`](crate::adapter::read_any).
pub fn read(dir: &Path, config: &Config, slots: &[Slot]) -> Result<Adapter, Error> {
    read_slots(dir, config, Some(slots))
}

/// [`read`]; with `None`, all slots in the file are read.
pub(in crate::adapter) fn read_slots(
    dir: &Path,
    config: &Config,
    slots: Option<&[Slot]>,
) -> Result<Adapter, Error> {
    let found = read_config(dir, config)?;
    let bytes = read_file(dir, TENSORS)?;
    parse(&bytes, &found, config, slots)
        .map_err(|problem| Error::Tensors { path: dir.join(TENSORS), problem })
}

fn parse(
    bytes: &[u8],
    found: &AdapterConfig,
    config: &Config,
    slots: Option<&[Slot]>,
) -> Result<Adapter, String> {
    let views: Vec<_> = safetensors_file::open(bytes)?.tensors();
    let mut tensors = safetensors_file::list(&views, |key| parse_key(key, config));
    if found.gate_up_alone {
        for (_, module, _) in tensors.iter_mut().filter_map(|t| t.place.as_mut()) {
            if *module == Module::FfnDownExps {
                *module = Module::FfnGateUpExps;
            }
        }
    }
    // Patterns match the name of the module in its class.
    let inside = tensors.iter().any(|t| t.name.contains(".language_model."));
    let naming = if inside { Naming::conditional_generation(config) } else { Naming::causal_lm(config) };
    let spec = |slot: &Slot| {
        let (rank, alpha) = found.of(&naming.module(slot));
        RankScale::of(rank, alpha, found.rslora)
    };
    let module = |slot: &Slot| Naming::causal_lm(config).module(slot);
    let names = Names { halves: ["lora_A", "lora_B"], module: &module };
    assemble(&tensors, (MatrixLayout::Rows, &names), &spec, (found.alpha, found.rslora), config, slots)
}

/// Paths of the text layers. The last one is that of classes with towers before transformers 4.52.
const LAYERS: [&str; 3] = ["model.layers.", "model.language_model.layers.", "language_model.model.layers."];

/// The place that a key means, in either naming, with or without PEFT's adapter name `default`.
fn parse_key(key: &str, config: &Config) -> Option<Place> {
    let inside = key.strip_prefix("base_model.model.")?;
    let layers = LAYERS.iter().find_map(|layers| inside.strip_prefix(layers))?;
    let (layer, rest) = layer_and_rest(layers)?;
    let rest = rest.strip_suffix(".weight")?;
    let rest = rest.strip_suffix(".default").unwrap_or(rest);
    let naming = Naming::causal_lm(config);
    let (path, half) = match rest.strip_suffix(".lora_A") {
        Some(path) => (path, Half::A),
        None => (rest.strip_suffix(".lora_B")?, Half::B),
    };
    // Experts are wrapped once per parameter: see the documentation of `peft`.
    let module = match path.strip_prefix(naming.experts()) {
        Some("") => Module::FfnDownExps,
        Some(".base_layer") => Module::FfnGateUpExps,
        _ => Module::ALL.into_iter().find(|m| naming.path(*m) == path && !m.of_experts())?,
    };
    Some((layer, module, half))
}
