//! `adapter_model.safetensors`: every tensor must fit a slot, and every slot must have its two tensors.

use std::path::Path;

use super::config::read_file;
use super::{AdapterConfig, Naming, TENSORS, read_config};
use crate::adapter::lora::{Adapter, Slot};
use crate::base::Module;
use crate::base::config::Config;
use crate::export::pairs::{Half, Layout, Names, Place, Spec, assemble, layer_and_rest};
use crate::export::{Error, safetensors_file};

/// Reads a PEFT folder for the model `config` and the slots that the caller trains, in any of [`Naming`]'s namings.
///
/// F16 and BF16 become F32, exactly. Fails where the configuration is damaged or not of a plain LoRA, where the file is damaged, where a slot lacks a
/// tensor, where a tensor fits no slot, and on wrong shapes, other types and values that are not finite.
pub fn read(dir: &Path, config: &Config, slots: &[Slot]) -> Result<Adapter, Error> {
    read_slots(dir, config, Some(slots))
}

/// [`read`], where `None` takes the slots that are there.
pub(in crate::export) fn read_slots(
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
    // A pattern matches the name that the module has in its class.
    let inside = tensors.iter().any(|t| t.name.contains(".language_model."));
    let naming = if inside { Naming::conditional_generation(config) } else { Naming::causal_lm(config) };
    let spec = |slot: &Slot| {
        let (rank, alpha) = found.of(&naming.module(slot));
        Spec::of(rank, alpha, found.rslora)
    };
    let module = |slot: &Slot| Naming::causal_lm(config).module(slot);
    let names = Names { halves: ["lora_A", "lora_B"], module: &module };
    assemble(&tensors, (Layout::Rows, &names), &spec, (found.alpha, found.rslora), config, slots)
}

/// What a key names, in either naming and with or without PEFT's adapter name `default`.
fn parse_key(key: &str, config: &Config) -> Option<Place> {
    let layers = key.strip_prefix("base_model.model.model.")?;
    let layers = layers.strip_prefix("language_model.").unwrap_or(layers);
    let (layer, rest) = layer_and_rest(layers.strip_prefix("layers.")?)?;
    let rest = rest.strip_suffix(".weight")?;
    let rest = rest.strip_suffix(".default").unwrap_or(rest);
    let naming = Naming::causal_lm(config);
    let (path, half) = match rest.strip_suffix(".lora_A") {
        Some(path) => (path, Half::A),
        None => (rest.strip_suffix(".lora_B")?, Half::B),
    };
    let module = match path {
        // Wrapped once for each: see the head of `peft.rs`.
        "experts" => Module::FfnDownExps,
        "experts.base_layer" => Module::FfnGateUpExps,
        _ => Module::ALL.into_iter().find(|m| naming.path(*m) == path && !m.of_experts())?,
    };
    Some((layer, module, half))
}
