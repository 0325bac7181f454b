//! Adapters in every format.

use std::fs;
use std::path::Path;

use rullama_train::adapter::lora::{Adapter, slots};
use rullama_train::adapter::{self, Format, WriteOptions, read_any};
use rullama_train::base::{Base, Module};

use super::files::{folder, pack, unpack};
use super::{Outcome, accepted_if, bases, refused};

const PEFT: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];
const MLX: [&str; 2] = ["adapter_config.json", "adapters.safetensors"];

fn written(format: Format, names: &[&str]) -> Vec<Vec<u8>> {
    bases().map(|base| written_for(base, format, names)).collect()
}

fn written_for(base: &Base, format: Format, names: &[&str]) -> Vec<u8> {
    let modules = [Module::AttnQ, Module::AttnQkv, Module::SsmOut, Module::FfnDown, Module::FfnDownExps];
    let mut slots = slots(base.config(), &modules);
    slots.retain(|slot| format.lacks(slot).is_none());
    let mut adapter = Adapter::init(&slots, 2, 4.0, false, 1);
    for pair in adapter.pairs.values_mut() {
        pair.b.iter_mut().enumerate().for_each(|(i, b)| *b = (i as f32 + 1.0).sin());
    }
    let options =
        WriteOptions { base_model: "google/gemma", dropout: 0.1, fingerprint: None, vocabulary: None };
    let dir = tempfile::tempdir().expect("a folder");
    let path = adapter::write(dir.path(), format, &adapter, base.config(), &options).expect("sound");
    let read = |path: &Path| fs::read(path).expect("written");
    match names {
        [] => read(&path),
        names => pack(&names.iter().map(|name| read(&path.join(name))).collect::<Vec<_>>()),
    }
}

pub fn gguf_loras() -> Vec<Vec<u8>> {
    [written(Format::GgufLora, &[]), written(Format::GgufLoraF16, &[])].concat()
}

pub fn rullamas() -> Vec<Vec<u8>> {
    written(Format::RullamaV0, &[])
}

pub fn pefts() -> Vec<Vec<u8>> {
    [written(Format::Peft, &PEFT), written(Format::PeftConditionalGeneration, &PEFT)].concat()
}

pub fn mlxs() -> Vec<Vec<u8>> {
    written(Format::Mlx, &MLX)
}

pub fn gguf_lora(input: &[u8]) -> Outcome {
    let name = "adapter.gguf";
    read(&folder(&[(name, Some(input))]).join(name))
}

pub fn rullama(input: &[u8]) -> Outcome {
    let name = "adapter.safetensors";
    read(&folder(&[(name, Some(input))]).join(name))
}

pub fn peft(input: &[u8]) -> Outcome {
    in_folder(PEFT, input)
}

pub fn mlx(input: &[u8]) -> Outcome {
    in_folder(MLX, input)
}

fn in_folder(names: [&str; 2], input: &[u8]) -> Outcome {
    let files = unpack(input, 2);
    read(&folder(&[(names[0], files[0]), (names[1], files[1])]))
}

/// An accepted adapter has the shapes of the base, and a scale and values that f32 holds.
fn read(path: &Path) -> Outcome {
    let mut read = bases().map(|base| read_any(path, base.config(), None));
    let first = read.next().expect("a base");
    let adapter = match first.or_else(|error| read.find_map(Result::ok).ok_or(error)) {
        Ok(adapter) => adapter,
        Err(error) => return refused(error),
    };
    let scale = adapter.scale() as f32;
    if !scale.is_normal() {
        return Outcome::Wrong(format!("the scale is {scale}"));
    }
    let sizes = adapter.pairs.iter().all(|(slot, pair)| {
        pair.a.len() == slot.len_a(adapter.rank) && pair.b.len() == slot.len_b(adapter.rank)
    });
    let finite =
        adapter.pairs.values().all(|pair| pair.a.iter().chain(&pair.b).all(|value| value.is_finite()));
    accepted_if(sizes && finite && !adapter.pairs.is_empty(), || {
        format!("sizes fit: {sizes}, finite: {finite}")
    })
}
