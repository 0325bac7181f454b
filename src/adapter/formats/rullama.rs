//! `rullama-lora-v0`: the one safetensors file that rullama writes and loads.
//!
//! Tensors are named `lora.blk.N.attn_q.A` `[R, in]` and `lora.blk.N.attn_q.B` `[out, R]`. Everything else is text in the
//! metadata. The scale is `alpha / rank`, so rank-stabilised scaling is converted to another alpha.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use super::assemble::{Names, Place, RankScale, assemble, layer_and_rest};
use super::layout::{Half, MatrixLayout};
use super::safetensors_file::{self, Matrix, read_file};
use crate::adapter::lora::{Adapter, MAX_RANK, Slot};
use crate::adapter::{Error, WriteOptions};
use crate::base::Module;
use crate::base::config::Config;
use crate::files;

/// `format` in the metadata.
pub(super) const FORMAT: &str = "rullama-lora-v0";
/// The base's name in the metadata.
pub(in crate::adapter) const BASE_MODEL: &str = "rullama_train.base_model";
const NAMES: Names = Names { halves: ["A", "B"], module: &|slot| module(slot).unwrap_or_default() };

/// Writes the file. Fails on modules that rullama does not adapt.
///
/// The metadata contain the base's name, if known. rullama ignores it.
pub fn write(path: &Path, adapter: &Adapter, options: &WriteOptions) -> Result<(), Error> {
    let refuse = |problem: String| Error::Adapter { problem };
    let mut tensors = Vec::new();
    let mut modules = BTreeSet::new();
    for (slot, pair) in &adapter.pairs {
        let (Some(module), Some(short)) = (module(slot), name(slot.module)) else {
            let present = |m: &Module| name(*m).is_none() && adapter.pairs.keys().any(|s| s.module == *m);
            let others: Vec<&str> = Module::ALL.into_iter().filter(present).map(Module::gguf_name).collect();
            return Err(refuse(format!(
                "{FORMAT} cannot hold {}; remove them from lora.target_modules and train again, or choose another format",
                others.join(" and ")
            )));
        };
        modules.insert(short);
        for (half, values) in [(Half::A, &pair.a), (Half::B, &pair.b)] {
            let (shape, _) = MatrixLayout::Rows.shape(half, adapter.rank, slot);
            let name = format!("{module}.{}", NAMES.halves[half as usize]);
            tensors.push(Matrix { name, shape, values: Cow::Borrowed(values) });
        }
    }
    let metadata = [
        ("format", FORMAT.to_string()),
        ("rank", adapter.rank.to_string()),
        ("alpha", adapter.plain_alpha().to_string()),
        ("target_modules", modules.into_iter().collect::<Vec<_>>().join(",")),
        ("dtype", "f32".to_string()),
    ];
    let mut all = options.metadata();
    if !options.base_model.is_empty() {
        all.insert(BASE_MODEL.into(), options.base_model.into());
    }
    all.extend(metadata.map(|(key, value)| (key.to_string(), value)));
    let bytes = safetensors_file::serialize(&tensors, all).map_err(refuse)?;
    Ok(files::write_atomic(path, &bytes)?)
}

/// Reads a file for the model `config`. For `slots` and errors see [`read_any`](crate::adapter::read_any).
pub fn read(path: &Path, config: &Config, slots: Option<&[Slot]>) -> Result<Adapter, Error> {
    let bytes = read_file(path)?;
    let refuse = |problem: String| Error::Tensors { path: path.into(), problem };
    let file = safetensors_file::open(&bytes).map_err(refuse)?;
    let (rank, alpha) = parse_metadata(&safetensors_file::metadata(&bytes))
        .map_err(|problem| Error::Config { path: path.into(), problem })?;
    let views = file.tensors();
    let tensors = safetensors_file::list(&views, parse_name);
    let spec = |_: &Slot| RankScale::of(rank, alpha, false);
    assemble(&tensors, (MatrixLayout::Rows, &NAMES), &spec, (alpha, false), config, slots).map_err(refuse)
}

/// Rank and alpha.
fn parse_metadata(metadata: &HashMap<String, String>) -> Result<(usize, f64), String> {
    let wrong = |key: &str, expected: &str| match metadata.get(key) {
        Some(found) => format!("metadata key `{key}` is {found:?}, expected {expected}"),
        None => format!("metadata key `{key}` is missing, expected {expected}"),
    };
    if metadata.get("format").is_none_or(|found| found != FORMAT) {
        return Err(wrong("format", &format!("{FORMAT:?}; use an adapter of rullama, or a PEFT folder")));
    }
    let rank = metadata.get("rank").and_then(|r| r.parse().ok()).filter(|r| (1..=MAX_RANK).contains(r));
    let rank = rank.ok_or_else(|| wrong("rank", &format!("a whole number from 1 to {MAX_RANK}")))?;
    let alpha = metadata.get("alpha").and_then(|a| a.parse().ok());
    let alpha = alpha.filter(|a: &f64| a.is_finite() && *a != 0.0);
    Ok((rank, alpha.ok_or_else(|| wrong("alpha", "a number other than 0"))?))
}

/// rullama's name of a module. `None` if rullama does not adapt it: it adapts the seven matrices of attention and feed-forward.
pub fn name(module: Module) -> Option<&'static str> {
    match module {
        Module::AttnQ | Module::AttnK | Module::AttnV => Some(module.gguf_name()),
        Module::AttnOutput => Some("attn_o"),
        Module::FfnGate | Module::FfnUp | Module::FfnDown => Some(module.gguf_name()),
        _ => None,
    }
}

fn module(slot: &Slot) -> Option<String> {
    Some(format!("lora.blk.{}.{}", slot.layer, name(slot.module)?))
}

fn parse_name(text: &str) -> Option<Place> {
    let (layer, rest) = layer_and_rest(text.strip_prefix("lora.blk.")?)?;
    let (short, half) = match rest.strip_suffix(".A") {
        Some(short) => (short, Half::A),
        None => (rest.strip_suffix(".B")?, Half::B),
    };
    let module = Module::ALL.into_iter().find(|m| name(*m) == Some(short))?;
    Some((layer, module, half))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seven_matrices_have_names() {
        let names: Vec<_> = Module::ALL.into_iter().filter_map(name).collect();
        assert_eq!(names, ["attn_q", "attn_k", "attn_v", "attn_o", "ffn_gate", "ffn_up", "ffn_down"]);
    }
}
