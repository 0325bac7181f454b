//! GGUF LoRA files, as llama.cpp (`--lora`) and LM Studio load them.
//!
//! Tensors are named `<base tensor>.lora_a`, ne `[in, R]`, and `<base tensor>.lora_b`, ne `[R, out]`. Their bytes equal the
//! matrices in memory. The matrices of experts follow each other, `[in, R, E]` and `[R, out, E]`, and `B` of their down
//! projections is multiplied by the experts' scales. Keys and values of a latent
//! vector that the base has apart have an adapter for the matrix of each head.
//!
//! llama.cpp always scales by `adapter.lora.alpha / R`, so rank-stabilised scaling is converted to another alpha.
//! Source: llama.cpp `src/llama-adapter.cpp`; its converter `convert_lora_to_gguf.py` writes the same tensors.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use half::f16;

use super::assemble::{Names, Place, RankScale, Tensor, assemble, layer_and_rest};
use super::gguf_joined as joined;
use super::gguf_latent;
use super::layout::{Half, MatrixLayout};
use crate::adapter::lora::{Adapter, MAX_RANK, Pair, Slot};
use crate::adapter::{Error, WriteOptions};
use crate::base::Module;
use crate::base::config::Config;
use crate::base::gguf::value::Value;
use crate::base::gguf::writer::{self, Entry};
use crate::base::{GgmlType, Gguf};
use crate::files;

const ALPHA: &str = "adapter.lora.alpha";
const NAMES: Names = Names { halves: joined::HALVES, module: &module_name };

/// Precision of stored values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Exact.
    F32,
    /// Rounded, at half the size.
    F16,
}

/// Writes the file. Fails if alpha does not fit an f32, and if a value does not fit F16 (beyond ±65504).
pub fn write(
    path: &Path,
    adapter: &Adapter,
    precision: Precision,
    config: &Config,
    options: &WriteOptions,
) -> Result<(), Error> {
    let refuse = |problem: String| Err(Error::Adapter { problem });
    let alpha = adapter.plain_alpha() as f32;
    // llama.cpp uses the scale 1 if alpha is 0.
    if !alpha.is_normal() {
        return refuse(format!(
            "its alpha is {}, which is {alpha} in a GGUF file; train with another alpha",
            adapter.plain_alpha()
        ));
    }
    let metadata = metadata(alpha, config, options);

    let mut entries = Vec::new();
    let mut data = Vec::new();
    for (slot, pair) in &adapter.pairs {
        for Stored { tensor, slot, half, values } in stored(slot, pair, adapter.rank, config) {
            let name = format!("{tensor}.{}", NAMES.halves[half as usize]);
            let overflow = |v: &&f32| precision == Precision::F16 && !f16::from_f32(**v).is_finite();
            if let Some(value) = values.iter().find(overflow) {
                return refuse(format!(
                    "{name} contains {value}, which exceeds the range of F16; export it as gguf-lora"
                ));
            }
            let (shape, _) = MatrixLayout::Gguf.shape(half, adapter.rank, &slot);
            let ty = match precision {
                Precision::F32 => GgmlType::F32,
                Precision::F16 => GgmlType::F16,
            };
            entries.push(Entry { name, shape, ty });
            data.push(values);
        }
    }
    Ok(files::write_atomic_with(path, |out| {
        writer::write(out, &metadata, &entries, |i, out| match precision {
            Precision::F32 => out.write_all(bytemuck::cast_slice(&data[i])),
            Precision::F16 => {
                let rounded: Vec<f16> = data[i].iter().map(|v| f16::from_f32(*v)).collect();
                out.write_all(bytemuck::cast_slice(&rounded))
            }
        })
    })?)
}

/// One matrix of the file, for the tensor `tensor` of the base.
struct Stored<'a> {
    tensor: String,
    slot: Slot,
    half: Half,
    values: Cow<'a, [f32]>,
}

/// The matrices of the file for a pair. Where the base has several tensors in the place of one matrix, each has the whole `A` and its own
/// rows of `B`.
fn stored<'a>(slot: &Slot, pair: &'a Pair, rank: usize, config: &Config) -> Vec<Stored<'a>> {
    let halves = [(Half::A, &pair.a), (Half::B, &pair.b)];
    let l = &config.layers[slot.layer];
    if let (Module::AttnKvB, Some(latent)) = (slot.module, l.latent.filter(|latent| latent.apart)) {
        let parts = gguf_latent::parts(slot, pair, &latent, l.heads, rank);
        let stored = |(slot, half, values)| Stored {
            tensor: module_name(&slot),
            slot,
            half,
            values: Cow::Owned(values),
        };
        return parts.into_iter().map(stored).collect();
    }
    if joined::is_apart(slot, config) {
        let part = |(module, rows): (Module, Range<usize>)| {
            let part = Slot { module, out_features: rows.len(), ..*slot };
            let b = MatrixLayout::Gguf.store(
                Half::B,
                &pair.b[rows.start * rank..rows.end * rank],
                rank,
                &part,
                config,
            );
            [(Half::A, Cow::Borrowed(&pair.a[..])), (Half::B, b)].map(|(half, values)| Stored {
                tensor: module_name(&part),
                slot: part,
                half,
                values,
            })
        };
        return slot.parts(config).into_iter().flat_map(part).collect();
    }
    if !joined::is_split(slot.module, slot.layer, config) {
        let stored = |(half, values): (Half, &'a Vec<f32>)| Stored {
            tensor: module_name(slot),
            slot: *slot,
            half,
            values: MatrixLayout::Gguf.store(half, values, rank, slot, config),
        };
        return halves.map(stored).into();
    }
    let part = Slot { out_features: slot.out_features / 2, ..*slot };
    let rows = part.out_features * rank;
    let of = |(i, name): (usize, &str)| {
        let own = move |(half, values): (Half, &'a Vec<f32>)| match half {
            Half::A => (half, Cow::Borrowed(values.as_slice())),
            Half::B => {
                let experts = values.chunks_exact(2 * rows);
                (half, experts.flat_map(|b| &b[i * rows..][..rows]).copied().collect())
            }
        };
        let tensor = format!("blk.{}.{name}.weight", slot.layer);
        halves.map(own).map(|(half, values)| Stored { tensor: tensor.clone(), slot: part, half, values })
    };
    joined::SPLIT.into_iter().enumerate().flat_map(of).collect()
}

/// The metadata of the file.
fn metadata(alpha: f32, config: &Config, options: &WriteOptions) -> Vec<(String, Value)> {
    let text = |text: &str| Value::String(text.into());
    let metadata = [
        ("general.architecture", text(config.architecture)),
        ("general.type", text("adapter")),
        ("adapter.type", text("lora")),
        ("general.base_model.count", Value::U32(1)),
        ("general.base_model.0.name", text(options.base_model)),
        (ALPHA, Value::F32(alpha)),
    ];
    let mut metadata = metadata.map(|(key, value)| (key.to_string(), value)).to_vec();
    metadata.extend(options.digests().map(|(key, digest)| (key.to_string(), text(digest))));
    metadata
}

/// Reads a GGUF LoRA for the model `config`. For `slots` and errors see [`read_any`](crate::adapter::read_any).
///
/// Also fails on files that are not adapters, on other architectures, and on activated LoRA. Without alpha, or with an alpha of 0, the
/// scale is 1, as in llama.cpp. Each matrix may have a different rank.
pub fn read(path: &Path, config: &Config, slots: Option<&[Slot]>) -> Result<Adapter, Error> {
    let gguf = Gguf::open(path)?;
    let refuse = |problem: String| Error::Config { path: path.into(), problem };
    for (key, expected, next) in [
        ("general.type", "adapter", "use an adapter; this may be a model"),
        ("general.architecture", config.architecture, "use an adapter of this model"),
        ("adapter.type", "lora", "use a LoRA adapter"),
    ] {
        let found: &str = gguf.require(key)?;
        if found != expected {
            return Err(refuse(format!("{key} is {found:?}, expected {expected:?}; {next}")));
        }
    }
    if gguf.value("adapter.alora.invocation_tokens").is_some() {
        return Err(refuse("is an activated LoRA; use a plain LoRA adapter".into()));
    }
    let alpha: f32 = gguf.get(ALPHA)?.unwrap_or_default();
    if !alpha.is_finite() {
        return Err(refuse(format!("{ALPHA} is {alpha}, expected a finite number; export it again")));
    }

    let refuse = |problem: String| Error::Tensors { path: path.into(), problem };
    let mut joined = joined::join(&gguf, config).map_err(refuse)?;
    joined.extend(gguf_latent::join(&gguf, config).map_err(refuse)?);
    let is_joined = |name: &String| joined.iter().any(|joined| joined.of.contains(name));
    let alone = gguf.tensors().iter().filter(|t| !is_joined(&t.name)).map(|t| Tensor {
        name: &t.name,
        place: parse_name(&t.name).map(|place| in_base(place, config)),
        shape: &t.shape,
        ty: t.ty.name(),
        data: gguf.data(t),
    });
    let joined = joined.iter().map(|t| Tensor {
        name: &t.name,
        place: parse_name(&t.name),
        shape: &t.shape,
        ty: t.ty.clone(),
        data: &t.data,
    });
    let tensors: Vec<Tensor> = alone.chain(joined).collect();
    let ranks = ranks(&tensors).map_err(refuse)?;
    let rank = |slot: &Slot| ranks.get(&(slot.layer, slot.module)).copied().unwrap_or(1);
    let largest = ranks.values().copied().max().unwrap_or(1);
    let (alpha, scaled) = if alpha == 0.0 { (largest as f64, false) } else { (f64::from(alpha), true) };
    let spec = |slot: &Slot| match scaled {
        true => RankScale::of(rank(slot), alpha, false),
        false => RankScale { rank: rank(slot), scale: 1.0 },
    };
    assemble(&tensors, (MatrixLayout::Gguf, &NAMES), &spec, (alpha, false), config, slots).map_err(refuse)
}

/// Name of the tensor in the base. Gate and up as one matrix have up's name.
fn module_name(slot: &Slot) -> String {
    let module = if slot.module == Module::FfnGateUp { Module::FfnUp } else { slot.module };
    format!("blk.{}.{}.weight", slot.layer, module.gguf_name())
}

/// The place of a tensor in a model, whose base may have gate and up as one tensor of up's name.
fn in_base((layer, module, half): Place, config: &Config) -> Place {
    let fused = config.layers.get(layer).is_some_and(|l| l.fused_in_file.contains(&Module::FfnGateUp));
    (layer, if fused && module == Module::FfnUp { Module::FfnGateUp } else { module }, half)
}

fn parse_name(name: &str) -> Option<Place> {
    let (layer, rest) = layer_and_rest(name.strip_prefix("blk.")?)?;
    let (module, half) = match rest.strip_suffix(".weight.lora_a") {
        Some(module) => (module, Half::A),
        None => (rest.strip_suffix(".weight.lora_b")?, Half::B),
    };
    let module = Module::ALL.into_iter().find(|m| m.gguf_name() == module)?;
    Some((layer, module, half))
}

/// The rank of every adapted matrix. The file has it only in the shapes.
fn ranks(tensors: &[Tensor]) -> Result<BTreeMap<(usize, Module), usize>, String> {
    let mut ranks: BTreeMap<(usize, Module), (usize, &str)> = BTreeMap::new();
    for tensor in tensors {
        let (Some((layer, module, half)), &[x, y, ..]) = (tensor.place, tensor.shape) else { continue };
        let name = tensor.name;
        let rank = MatrixLayout::Gguf.rank(half, [x, y]);
        if !(1..=MAX_RANK).contains(&rank) {
            return Err(format!(
                "{name} has rank {rank}, expected 1 to {MAX_RANK}; export the adapter again"
            ));
        }
        let (other_rank, other) = *ranks.entry((layer, module)).or_insert((rank, name));
        if other_rank != rank {
            return Err(format!(
                "{other} has rank {other_rank} and {name} has rank {rank}; export the adapter again"
            ));
        }
    }
    if !ranks.is_empty() {
        return Ok(ranks.into_iter().map(|(place, (rank, _))| (place, rank)).collect());
    }
    let names: Vec<&str> = tensors.iter().take(6).map(|t| t.name).collect();
    Err(format!(
        "contains no LoRA matrix of a text layer, only [{}]; use an adapter of this model",
        names.join(", ")
    ))
}
