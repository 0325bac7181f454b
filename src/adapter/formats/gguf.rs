//! GGUF LoRA files, as llama.cpp (`--lora`) and LM Studio load them.
//!
//! Tensors are named `<base tensor>.lora_a`, ne `[in, R]`, and `<base tensor>.lora_b`, ne `[R, out]`. Their bytes equal the
//! matrices in memory. The matrices of experts follow each other, `[in, R, E]` and `[R, out, E]`, and `B` of their down
//! projections is multiplied by the experts' scales.
//!
//! llama.cpp always scales by `adapter.lora.alpha / R`, so rank-stabilised scaling is converted to another alpha.
//! Source: llama.cpp `src/llama-adapter.cpp`; its converter `convert_lora_to_gguf.py` writes the same tensors.

use std::collections::BTreeMap;
use std::path::Path;

use half::f16;

use super::assemble::{Names, Place, RankScale, Tensor, assemble, layer_and_rest};
use super::layout::{Half, MatrixLayout};
use crate::adapter::lora::{Adapter, Slot};
use crate::adapter::{Error, FINGERPRINT, Format, WriteOptions};
use crate::base::Module;
use crate::base::config::Config;
use crate::base::gguf::value::Value;
use crate::base::gguf::writer::{self, Entry};
use crate::base::{GgmlType, Gguf};
use crate::files;

const ALPHA: &str = "adapter.lora.alpha";
const NAMES: Names = Names { halves: ["lora_a", "lora_b"], module: &module };

/// Precision of stored values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Exact.
    F32,
    /// Rounded, at half the size.
    F16,
}

/// Writes the file. Fails if alpha does not fit an f32, if a value does not fit F16 (beyond ±65504), and for adapters of experts
/// whose gate and up are separate tensors in the base `config`.
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
        if let Some(problem) = Format::GgufLora.lacks(slot, config) {
            return refuse(problem);
        }
        for (half, values) in [(Half::A, &pair.a), (Half::B, &pair.b)] {
            let values = MatrixLayout::Gguf.store(half, values, adapter.rank, slot, config);
            let name = format!("{}.{}", module(slot), NAMES.halves[half as usize]);
            let overflow = |v: &&f32| precision == Precision::F16 && !f16::from_f32(**v).is_finite();
            if let Some(value) = values.iter().find(overflow) {
                return refuse(format!(
                    "{name} contains {value}, which exceeds the range of F16; export it as gguf-lora"
                ));
            }
            let (shape, _) = MatrixLayout::Gguf.shape(half, adapter.rank, slot);
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
    metadata.extend(options.fingerprint.map(|digests| (FINGERPRINT.to_string(), text(digests))));
    metadata
}

/// Reads a GGUF LoRA for the model `config`. For `slots` and errors see [`read_any`](crate::adapter::read_any).
///
/// Also fails on files that are not adapters, on other architectures, on activated LoRA, and on an alpha of 0, which llama.cpp
/// treats as a scale of 1. Each matrix may have a different rank.
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
    let alpha: f32 = gguf.require(ALPHA)?;
    if !alpha.is_finite() || alpha == 0.0 {
        return Err(refuse(format!("{ALPHA} is {alpha}, expected a number other than 0; export it again")));
    }

    let tensors = gguf.tensors().iter().map(|t| Tensor {
        name: &t.name,
        place: parse_name(&t.name),
        shape: &t.shape,
        ty: t.ty.name(),
        data: gguf.data(t),
    });
    let tensors: Vec<Tensor> = tensors.collect();
    let refuse = |problem: String| Error::Tensors { path: path.into(), problem };
    let ranks = ranks(&tensors).map_err(refuse)?;
    let alpha = f64::from(alpha);
    let rank = |slot: &Slot| ranks.get(&(slot.layer, slot.module)).copied().unwrap_or(1);
    let spec = |slot: &Slot| RankScale::of(rank(slot), alpha, false);
    assemble(&tensors, (MatrixLayout::Gguf, &NAMES), &spec, (alpha, false), config, slots).map_err(refuse)
}

/// Name of the tensor in the base.
fn module(slot: &Slot) -> String {
    format!("blk.{}.{}.weight", slot.layer, slot.module.gguf_name())
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
        if rank == 0 {
            return Err(format!("{name} has rank 0; export the adapter again"));
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
