//! Tensors of adapter files that a text model has no use for.

use std::path::Path;

use super::super::{Error, Format, detect};
use super::{mlx, peft, safetensors_file};
use crate::base::Gguf;

/// Parts of names of the modules for pictures and sound.
const TOWERS: [&str; 8] = [
    ".vision_tower.",
    ".vision_model.",
    ".visual.",
    ".multi_modal_projector.",
    ".audio_tower.",
    ".audio_model.",
    ".embed_vision.",
    ".embed_audio.",
];

/// The reason why a tensor is left out: matrices of vision and audio towers, and norms, which llama.cpp leaves out too.
pub(super) fn reason(name: &str) -> Option<&'static str> {
    if TOWERS.iter().any(|tower| name.contains(tower) || name.starts_with(&tower[1..])) {
        return Some("vision and audio towers");
    }
    name.ends_with("_norm.weight").then_some("norms, which llama.cpp leaves out too")
}

/// A notice of the tensors that reading the adapter at `path` leaves out.
pub(in crate::adapter) fn notice(path: &Path) -> Result<Option<String>, Error> {
    let file = match detect(path)? {
        Format::GgufLora | Format::GgufLoraF16 => {
            let gguf = Gguf::open(path)?;
            return Ok(of(path, gguf.tensors().iter().map(|tensor| &*tensor.name)));
        }
        Format::Peft | Format::PeftConditionalGeneration => path.join(peft::TENSORS),
        Format::Mlx => path.join(mlx::TENSORS),
        Format::RullamaV0 => return Ok(None),
    };
    let names = safetensors_file::read_names(&file)?;
    Ok(of(path, names.iter().map(String::as_str)))
}

fn of<'a>(path: &Path, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut reasons: Vec<&str> = names.filter_map(reason).collect();
    let count = reasons.len();
    reasons.sort_unstable();
    reasons.dedup();
    let tensors = if count == 1 { "tensor is" } else { "tensors are" };
    (count > 0)
        .then(|| format!("{}: {count} {tensors} left out, of {}", path.display(), reasons.join(", and of ")))
}
