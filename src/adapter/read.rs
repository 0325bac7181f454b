//! Reads adapters in any format, which is detected from names and first bytes.

use std::path::Path;

use super::formats::{gguf, mlx, peft, rullama};
use super::lora::{Adapter, Slot};
use super::{Error, Format};
use crate::base::config::Config;
use crate::files;

/// Reads an adapter in any [`Format`] for the model `config`.
///
/// `slots` are those that the caller trains, and all of them must be there; `None` takes what is there. F16 and BF16
/// become F32, exactly. Fails where the files are damaged or not a plain LoRA, on a rank or scale that is none, where a
/// slot lacks a tensor, where a tensor fits no slot, and on wrong shapes, other types and values that are not finite.
pub fn read_any(path: &Path, config: &Config, slots: Option<&[Slot]>) -> Result<Adapter, Error> {
    match detect(path)? {
        Format::Peft | Format::PeftConditionalGeneration => peft::read_slots(path, config, slots),
        Format::GgufLora | Format::GgufLoraF16 => gguf::read(path, config, slots),
        Format::Mlx => mlx::read(path, config, slots),
        Format::RullamaV0 => rullama::read(path, config, slots),
    }
}

/// The format of a file or a folder, by its names and first bytes; [`Format::Peft`] and [`Format::GgufLora`] stand for
/// all their kinds.
pub fn detect(path: &Path) -> Result<Format, Error> {
    let refuse = |problem: &str| Err(Error::Read { path: path.into(), problem: problem.into() });
    const KINDS: &str = "a PEFT or mlx-lm folder, a GGUF LoRA or a rullama-lora-v0 file";
    if files::is_dir(path) {
        let [peft, mlx] = [peft::TENSORS, mlx::TENSORS].map(|name| files::exists(&path.join(name)));
        return match (peft, mlx) {
            (true, true) => refuse(
                "holds adapter_model.safetensors and adapters.safetensors, expected PEFT's or mlx-lm's; remove one",
            ),
            (false, true) => Ok(Format::Mlx),
            // PEFT's reader says what a folder lacks.
            (_, false) => Ok(Format::Peft),
        };
    }
    if !files::exists(path) {
        return refuse(&format!("does not exist; name {KINDS}"));
    }
    let start = match files::read_start(path, 9) {
        Ok(start) => start,
        Err(source) => return refuse(&format!("{source}; check the path and its permissions")),
    };
    if start.starts_with(b"GGUF") {
        return Ok(Format::GgufLora);
    }
    let name = path.file_name().unwrap_or_default();
    if name == peft::TENSORS || name == mlx::TENSORS || name == "adapter_config.json" {
        return refuse("is a file of an adapter folder; name the folder");
    }
    // The header's length, then its JSON.
    if start.get(8) == Some(&b'{') || path.extension().is_some_and(|e| e == "safetensors") {
        return Ok(Format::RullamaV0);
    }
    refuse(&format!("is none of the adapters that can be read, expected {KINDS}"))
}

/// A whole file.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    files::read(path).map_err(|source| Error::Read {
        path: path.into(),
        problem: format!("{source}; check the path and its permissions"),
    })
}
