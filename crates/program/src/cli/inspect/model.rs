//! `inspect` for GGUF models: the file, the formats of its weights, and whether it can be trained.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use rullama_train::adapter::lora;
use rullama_train::base::Module;
use rullama_train::base::config::LayerConfig;
use rullama_train::base::formats::file_type_name;
use rullama_train::base::{Base, Gguf};
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::run::names;

use crate::cli::{models, output, pull};

/// Describes the model that `model.base` would open.
pub fn describe_named(name: &str) -> Result<()> {
    pull::base(name)?;
    let base = Base::open(name)?;
    output::line("model", name);
    stored(base.gguf());
    trainable(&base);
    Ok(())
}

/// Describes a GGUF file, including one that cannot be trained.
pub fn describe_file(gguf: Gguf, path: &Path) -> Result<()> {
    output::line("model", path.display());
    stored(&gguf);
    match Base::from_gguf(gguf, &path.display().to_string()) {
        Ok(base) => trainable(&base),
        Err(error) => output::line("training", format_args!("not possible: {error}")),
    }
    Ok(())
}

/// Prints what every GGUF file contains: version, architecture, formats and template.
fn stored(gguf: &Gguf) {
    let text = |key: &str| gguf.get::<&str>(key).ok().flatten();
    let version = gguf.version();
    let size = output::bytes(gguf.file_size());
    let named = text("general.name").map_or(String::new(), |name| format!(", “{name}”"));
    let architecture = text("general.architecture").unwrap_or("unknown architecture");
    output::line("file", format_args!("GGUF {version}, {size}: {architecture}{named}"));
    let mut types: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for tensor in gguf.tensors() {
        let (count, bytes) = types.entry(tensor.ty.name()).or_default();
        *count += 1;
        *bytes += tensor.range.end - tensor.range.start;
    }
    let mut types: Vec<(String, (usize, u64))> = types.into_iter().collect();
    types.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(*bytes));
    let describe = |(name, (count, bytes)): &(String, (usize, u64))| {
        format!("{name} {} in {}", output::bytes(*bytes), output::count(*count, "tensor"))
    };
    let mix = gguf.get::<u32>("general.file_type").ok().flatten().and_then(file_type_name);
    let mix = mix.map_or(String::new(), |name| format!("{name}: "));
    output::line(
        "weights",
        format_args!("{mix}{}", types.iter().map(describe).collect::<Vec<_>>().join(", ")),
    );
    let template = match text("tokenizer.chat_template") {
        Some(template) => format!("in the file, {}", output::count(template.chars().count(), "character")),
        None => "not in the file".into(),
    };
    output::line("template", template);
}

/// Prints the shape, the fingerprint, and the modules that can be adapted.
fn trainable(base: &Base) {
    let config = base.config();
    let vocab = output::grouped(config.vocab);
    let shape = format_args!("{}, vocabulary {vocab}; {}", models::shape_of(base), kinds(&config.layers));
    output::line("shape", shape);
    output::line("identity", base.fingerprint());
    base.left_out().iter().for_each(|notice| output::line("notice", notice));
    let slots = lora::slots(config, &Module::ALL);
    let parameters: usize = slots.iter().map(|s| s.len_a(1) + s.len_b(1)).sum();
    match Tokenizer::from_gguf(base.gguf()) {
        Ok(tokenizer) => tokenizer.notices().iter().for_each(|notice| output::line("vocabulary", notice)),
        Err(error) => return output::line("training", format_args!("not possible: {error}")),
    }
    output::line(
        "training",
        format_args!(
            "possible on {}: {} per rank",
            names(&slots),
            output::count(parameters, "trainable parameter")
        ),
    );
}

/// The kinds of the layers.
fn kinds(layers: &[LayerConfig]) -> String {
    let count = |has: fn(&LayerConfig) -> bool| layers.iter().filter(|layer| has(layer)).count();
    let (sliding, nets) = (count(|layer| layer.window.is_some()), count(|layer| layer.delta.is_some()));
    let convolutions = count(|layer| layer.short_conv.is_some());
    let full = layers.len() - sliding - nets - convolutions;
    if nets > 0 {
        return format!("{full} full-attention and {nets} delta-net layers");
    }
    if convolutions > 0 {
        return format!("{full} full-attention and {convolutions} short-convolution layers");
    }
    let shared = count(|layer| layer.kv_donor.is_some());
    format!(
        "{sliding} sliding-window and {full} full-attention layers, {shared} of them share another layer's keys and values"
    )
}
