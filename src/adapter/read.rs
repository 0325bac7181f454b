//! Reads adapters in any format, which is detected from names and first bytes.

use std::path::{Path, PathBuf};

use super::formats::{gguf, mlx, peft, rullama};
use super::lora::{Adapter, Slot};
use super::{Error, Format};
use crate::base::config::Config;
use crate::files;

/// Reads an adapter in any [`Format`] for the model `config`.
///
/// With `slots`, the file must have exactly these slots. With `None`, all slots in the file are read. F16 and BF16 are
/// converted to F32, which is exact.
///
/// Fails if the files are damaged or are not a plain LoRA, if rank or scale are invalid, if a tensor is missing or fits no
/// slot, and on wrong shapes, other types, and values that are not finite.
pub fn read_any(path: &Path, config: &Config, slots: Option<&[Slot]>) -> Result<Adapter, Error> {
    match detect(path)? {
        Format::Peft | Format::PeftConditionalGeneration => peft::read_slots(path, config, slots),
        Format::GgufLora | Format::GgufLoraF16 => gguf::read(path, config, slots),
        Format::Mlx => mlx::read(path, config, slots),
        Format::RullamaV0 => rullama::read(path, config, slots),
    }
}

/// Detects the format of a file or folder from its names and first bytes.
///
/// [`Format::Peft`] and [`Format::GgufLora`] stand for all variants of PEFT folders and GGUF files.
pub fn detect(path: &Path) -> Result<Format, Error> {
    let refuse = |problem: &str| Err(Error::Read { path: path.into(), problem: problem.into() });
    const KINDS: &str = "a PEFT or mlx-lm folder, a GGUF LoRA or a rullama-lora-v0 file";
    if files::is_dir(path) {
        let [peft, mlx] = [peft::TENSORS, mlx::TENSORS].map(|name| files::exists(&path.join(name)));
        return match (peft, mlx) {
            (true, true) => refuse(
                "contains both adapter_model.safetensors (PEFT) and adapters.safetensors (mlx-lm), expected one of them; remove the other",
            ),
            (false, true) => Ok(Format::Mlx),
            (true, false) => Ok(Format::Peft),
            (false, false) if files::exists(&path.join(peft::PICKLE)) => refuse(peft::PICKLED),
            // The PEFT reader reports missing files.
            (false, false) => elsewhere(path).map_or(Ok(Format::Peft), |problem| refuse(&problem)),
        };
    }
    if !files::exists(path) {
        return refuse(&format!("does not exist; give the path of {KINDS}"));
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
        return refuse("is a file of an adapter folder; give the folder instead");
    }
    if is_safetensors(&start) || path.extension().is_some_and(|e| e == "safetensors") {
        return Ok(Format::RullamaV0);
    }
    refuse(&format!("is not a supported adapter, expected {KINDS}"))
}

/// Whether a file begins as a safetensors file: with the length of its header, which is below 4 GiB, and with the header as JSON.
pub fn is_safetensors(start: &[u8]) -> bool {
    let json = |byte: &u8| matches!(byte, b'{' | b' ' | b'\t' | b'\r' | b'\n');
    start.get(4..8) == Some(&[0; 4]) && start.get(8).is_some_and(json)
}

/// Says which of a folder's entries is an adapter, if the folder itself is none: a checkpoint of a run, or another export.
fn elsewhere(folder: &Path) -> Option<String> {
    let entries = files::list(folder).ok()?;
    let step =
        |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix("checkpoint-")?.parse::<usize>().ok();
    if let Some(checkpoint) = entries.iter().filter(|path| step(path).is_some()).max_by_key(|path| step(path))
    {
        return Some(format!(
            "the run has not written its adapter yet: it stopped after step {}. Finish it, or use {}",
            step(checkpoint).unwrap_or_default(),
            checkpoint.display()
        ));
    }
    let export = Format::ALL
        .iter()
        .map(|format| format.place(folder))
        .find(|place| *place != folder && files::exists(place))?;
    Some(format!("is not an adapter itself; use {}", export.display()))
}
