//! A notice of the tensors of adapter files that a text model has no use for.

use std::path::Path;

use super::formats::left_out::reason;
use super::formats::{mlx, peft, safetensors_file};
use super::{Error, Format, detect};
use crate::base::Gguf;

/// A notice of the tensors that reading the adapter at `path` leaves out.
pub(super) fn notice(path: &Path) -> Result<Option<String>, Error> {
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
