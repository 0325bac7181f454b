//! A GGUF model: what it is, what its weights are stored as, and whether it can be trained.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use rullama_train::adapter::lora;
use rullama_train::base::Module;
use rullama_train::base::{Base, Fingerprint, Gguf};
use rullama_train::run::names;

use super::super::{models, show};

/// What `model.base` would be opened as.
pub fn opened(name: &str) -> Result<()> {
    let base = Base::open(name)?;
    show::line("model", name);
    stored(base.gguf());
    trainable(&base);
    Ok(())
}

/// A file, also one that cannot be trained.
pub fn file(gguf: Gguf, path: &Path) -> Result<()> {
    show::line("model", path.display());
    stored(&gguf);
    match Base::from_gguf(gguf, &path.display().to_string()) {
        Ok(base) => trainable(&base),
        Err(error) => show::line("training", format_args!("not possible: {error}")),
    }
    Ok(())
}

/// What any GGUF tells.
fn stored(gguf: &Gguf) {
    let text = |key: &str| gguf.get::<&str>(key).ok().flatten();
    let version = gguf.version();
    let size = show::bytes(gguf.file_size());
    let named = text("general.name").map_or(String::new(), |name| format!(", “{name}”"));
    let architecture = text("general.architecture").unwrap_or("no architecture");
    show::line("file", format_args!("GGUF {version}, {size}: {architecture}{named}"));
    let mut types: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for tensor in gguf.tensors() {
        let (count, bytes) = types.entry(tensor.ty.name()).or_default();
        *count += 1;
        *bytes += tensor.range.end - tensor.range.start;
    }
    let mut types: Vec<(String, (usize, u64))> = types.into_iter().collect();
    types.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(*bytes));
    let of = |(name, (count, bytes)): &(String, (usize, u64))| {
        format!("{name} {} in {}", show::bytes(*bytes), show::count(*count, "tensor"))
    };
    show::line("weights", types.iter().map(of).collect::<Vec<_>>().join(", "));
    let template = match text("tokenizer.chat_template") {
        Some(template) => format!("its own, {}", show::count(template.chars().count(), "character")),
        None => "none in the file".into(),
    };
    show::line("template", template);
}

/// What training would find.
fn trainable(base: &Base) {
    let config = base.config();
    let sliding = config.layers.iter().filter(|layer| layer.window.is_some()).count();
    let shared = config.layers.iter().filter(|layer| layer.kv_donor.is_some()).count();
    let vocab = show::grouped(config.vocab);
    let shape = models::shape_of(base);
    show::line(
        "shape",
        format_args!(
            "{shape}, vocabulary {vocab}; {sliding} sliding and {} full layers, {shared} with keys and values of another",
            config.layers.len() - sliding
        ),
    );
    show::line("identity", Fingerprint::of(base));
    let slots = lora::slots(config, &Module::ALL);
    let parameters: usize = slots.iter().map(|s| s.len_a(1) + s.len_b(1)).sum();
    show::line(
        "training",
        format_args!(
            "possible on {}: {} for each rank",
            names(&slots),
            show::count(parameters, "trainable parameter")
        ),
    );
}
