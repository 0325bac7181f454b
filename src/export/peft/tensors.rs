//! `adapter_model.safetensors`: every tensor must fit a slot, and every slot must have its two tensors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::config::read_file;
use super::{Naming, TENSORS, read_config};
use crate::config::Config;
use crate::export::Error;
use crate::lora::{self, Adapter, Module, Pair, Slot};

/// How many names a message lists before it counts the rest.
const LISTED: usize = 6;

/// Which matrix of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Half {
    A,
    B,
}

impl Half {
    fn name(self) -> &'static str {
        match self {
            Half::A => "lora_A",
            Half::B => "lora_B",
        }
    }
}

/// Reads a PEFT folder for the model `config` and the slots that the caller trains, in any of [`Naming`]'s namings.
///
/// F16 and BF16 become F32, exactly. Fails where [`read_config`] fails, where the file is damaged, where a slot lacks a
/// tensor, where a tensor fits no slot, and on wrong shapes, other types and values that are not finite.
pub fn read(dir: &Path, config: &Config, slots: &[Slot]) -> Result<Adapter, Error> {
    let found = read_config(dir)?;
    let bytes = read_file(dir, TENSORS)?;
    let pairs = parse(&bytes, found.rank, config, slots)
        .map_err(|problem| Error::Tensors { path: dir.join(TENSORS), problem })?;
    Ok(Adapter { rank: found.rank, alpha: found.alpha, rslora: found.rslora, pairs })
}

/// Reads a PEFT folder with all that it holds, for a caller that trains nothing: the slots are those of its tensors.
///
/// Fails as [`read`] does; a tensor for a module that the model has not is named.
pub fn read_all(dir: &Path, config: &Config) -> Result<Adapter, Error> {
    let bytes = read_file(dir, TENSORS)?;
    // A damaged file has no names: reading it as one for every slot says what is wrong with it.
    let found = SafeTensors::deserialize(&bytes).map(|file| {
        file.names().into_iter().filter_map(parse_key).map(|(layer, module, _)| (layer, module)).collect()
    });
    let found: BTreeSet<(usize, Module)> = found.unwrap_or_default();
    let mut slots = lora::slots(config, &Module::ALL);
    if slots.iter().any(|s| found.contains(&(s.layer, s.module))) {
        slots.retain(|s| found.contains(&(s.layer, s.module)));
    }
    read(dir, config, &slots)
}

fn parse(bytes: &[u8], rank: usize, config: &Config, slots: &[Slot]) -> Result<BTreeMap<Slot, Pair>, String> {
    if bytes.starts_with(b"version https://git-lfs") {
        return Err("is a pointer of Git LFS, expected the tensors; run `git lfs pull`".into());
    }
    let file = SafeTensors::deserialize(bytes)
        .map_err(|e| format!("not a whole safetensors file: {e}; copy or export the adapter again"))?;
    let mut tensors: Vec<(&str, TensorView)> = file.iter().collect();
    tensors.sort_by_key(|(key, _)| *key);

    let mut halves: BTreeMap<(Slot, Half), Vec<f32>> = BTreeMap::new();
    let mut extra = Vec::new();
    for (key, tensor) in &tensors {
        let Some((layer, module, half)) = parse_key(key) else {
            extra.push(format!("{key} (not a LoRA matrix of a text layer)"));
            continue;
        };
        let Some(slot) = slots.iter().find(|s| (s.layer, s.module) == (layer, module)) else {
            extra.push(format!("{key} ({})", why_no_slot(config, layer, module)));
            continue;
        };
        let values = read_values(tensor, half, rank, slot).map_err(|problem| format!("{key} {problem}"))?;
        if halves.insert((*slot, half), values).is_some() {
            return Err(format!(
                "{} of {} is there twice, under two names; keep one",
                half.name(),
                Naming::default().module(slot)
            ));
        }
    }
    if !extra.is_empty() {
        return Err(format!("tensors that fit nothing that is trained: {}", list(&extra)));
    }

    let (mut pairs, mut missing) = (BTreeMap::new(), Vec::new());
    for slot in slots {
        let module = Naming::default().module(slot);
        match (halves.remove(&(*slot, Half::A)), halves.remove(&(*slot, Half::B))) {
            (Some(a), Some(b)) => drop(pairs.insert(*slot, Pair { a, b })),
            (None, None) => missing.push(module),
            (a, _) => {
                let (has, lacks) = if a.is_some() { (Half::A, Half::B) } else { (Half::B, Half::A) };
                let (has, lacks) = (has.name(), lacks.name());
                return Err(format!("{module} has a {has} and no {lacks}; export the adapter again"));
            }
        }
    }
    if !missing.is_empty() {
        return Err(format!(
            "no tensors for {}; leave these out of lora.target_modules, or use an adapter that has them",
            list(&missing)
        ));
    }
    Ok(pairs)
}

/// Layer, module and half that a key names, in either naming and with or without PEFT's adapter name `default`.
fn parse_key(key: &str) -> Option<(usize, Module, Half)> {
    let layers = key.strip_prefix("base_model.model.model.")?;
    let layers = layers.strip_prefix("language_model.").unwrap_or(layers);
    let (number, rest) = layers.strip_prefix("layers.")?.split_once('.')?;
    let layer = number.parse().ok().filter(|layer: &usize| layer.to_string() == number)?;
    let rest = rest.strip_suffix(".weight")?;
    let rest = rest.strip_suffix(".default").unwrap_or(rest);
    let (path, half) = match rest.strip_suffix(".lora_A") {
        Some(path) => (path, Half::A),
        None => (rest.strip_suffix(".lora_B")?, Half::B),
    };
    let module = Module::ALL.into_iter().find(|m| m.peft_path() == path)?;
    Some((layer, module, half))
}

/// Why the caller has no slot for a module.
fn why_no_slot(config: &Config, layer: usize, module: Module) -> String {
    let name = module.peft_name();
    let Some(found) = config.layers.get(layer) else {
        return format!("the model has {} layers, the first is 0", config.layers.len());
    };
    if module.shape(config, layer).is_some() {
        return format!("the recipe does not train it; add {name} to lora.target_modules");
    }
    match (module, found.kv_donor) {
        (Module::AttnK, Some(donor)) => {
            format!("layer {layer} shares the keys of layer {donor} and has no {name}")
        }
        (Module::AttnV, Some(donor)) => {
            format!("layer {layer} shares the values of layer {donor} and has no {name}")
        }
        (Module::AttnV, None) => format!("the values of layer {layer} are its keys: it has no {name}"),
        _ => format!("this model has no per-layer embeddings and no {name}"),
    }
}

/// The values as F32, after the shape, the type and every value have been checked.
fn read_values(tensor: &TensorView, half: Half, rank: usize, slot: &Slot) -> Result<Vec<f32>, String> {
    let (expected, meaning) = match half {
        Half::A => ([rank, slot.in_features], "[r, in]"),
        Half::B => ([slot.out_features, rank], "[out, r]"),
    };
    if tensor.shape() != expected {
        return Err(format!(
            "is {:?}, expected {meaning} = {expected:?}; use an adapter of this model and rank",
            tensor.shape()
        ));
    }
    let bytes = tensor.data();
    let values: Vec<f32> = match tensor.dtype() {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::F16 => bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::BF16 => bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        other => return Err(format!("is {other}, expected F32, F16 or BF16; convert the adapter")),
    };
    match values.iter().position(|v| !v.is_finite()) {
        Some(i) => {
            let (row, column) = (i / expected[1], i % expected[1]);
            Err(format!(
                "holds {} at [{row}, {column}]; use an adapter whose training did not diverge",
                values[i]
            ))
        }
        None => Ok(values),
    }
}

/// The first names, and how many more there are.
fn list(names: &[String]) -> String {
    let shown = names[..names.len().min(LISTED)].join(", ");
    if names.len() > LISTED { format!("{shown} and {} more", names.len() - LISTED) } else { shown }
}
