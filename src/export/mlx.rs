//! mlx-lm's adapter folders: `adapters.safetensors` and `adapter_config.json`, as `mlx_lm.lora` writes and loads them.
//!
//! Tensors are transposed, `lora_a` `[in, R]` and `lora_b` `[R, out]`, and the config holds the scale itself.
//! Source: mlx-lm `tuner/utils.py` (`load_adapters`) and `tuner/lora.py` (`LoRALinear`).

use std::path::Path;

use serde_json::{Map, Value, json};

use super::pairs::{Half, Layout, Names, Place, Spec, assemble, layer_and_rest};
use super::safetensors_file::{self, Matrix};
use super::{Error, Format, Options, read_file};
use crate::config::Config;
use crate::files;
use crate::lora::{Adapter, Module, Slot};

/// File of the tensors.
pub(super) const TENSORS: &str = "adapters.safetensors";
/// File of everything else.
const CONFIG: &str = "adapter_config.json";
const NAMES: Names = Names { halves: ["lora_a", "lora_b"], module };

/// Writes the folder; see [`files::write_folder`] for what happens to an existing one.
///
/// Refuses adapters of experts: mlx-lm has gate and up of experts apart.
pub fn write(dir: &Path, adapter: &Adapter, config: &Config, options: &Options) -> Result<(), Error> {
    let mut tensors = Vec::new();
    for (slot, pair) in &adapter.pairs {
        if let Some(problem) = Format::Mlx.lacks(slot, config) {
            return Err(Error::Adapter { problem });
        }
        for (half, values) in [(Half::A, &pair.a), (Half::B, &pair.b)] {
            let name = format!("{}.{}", module(slot), NAMES.halves[half as usize]);
            let (shape, _) = Layout::Transposed.shape(half, adapter.rank, slot);
            let values = Layout::Transposed.store(half, values, adapter.rank, slot, config);
            tensors.push(Matrix { name, shape: [shape[0], shape[1]], values });
        }
    }
    let bytes = safetensors_file::serialize(&tensors, options.metadata())
        .map_err(|problem| Error::Adapter { problem })?;
    let present = Module::ALL.into_iter().filter(|m| adapter.pairs.keys().any(|s| s.module == *m));
    let description = json!({
        "fine_tune_type": "lora",
        "lora_parameters": {
            "dropout": options.dropout,
            "keys": present.map(Module::peft_path).collect::<Vec<_>>(),
            "rank": adapter.rank,
            "scale": adapter.scale(),
        },
        "model": options.base_model,
        // All of them; a layer without tensors in the file keeps mlx-lm's start, which changes nothing.
        "num_layers": -1,
    });
    let config = serde_json::to_vec_pretty(&description).expect("an object with text keys is JSON");
    Ok(files::write_folder(dir, &[(TENSORS, &bytes), (CONFIG, &config)])?)
}

/// Reads a folder for the model `config`; [`super::read_any`] says what `slots` are and what is refused.
///
/// Also refuses what is not plain LoRA (`fine_tune_type` "dora" or "full"). The adapter's alpha is `scale·rank`.
pub fn read(dir: &Path, config: &Config, slots: Option<&[Slot]>) -> Result<Adapter, Error> {
    let path = dir.join(CONFIG);
    let (rank, scale) =
        parse_config(&read_file(&path)?).map_err(|problem| Error::Config { path: path.clone(), problem })?;
    let path = dir.join(TENSORS);
    let bytes = read_file(&path)?;
    let adapter = safetensors_file::open(&bytes).and_then(|file| {
        let views = file.tensors();
        let tensors = safetensors_file::list(&views, parse_name);
        let alpha = scale * rank as f64;
        let spec = |_: &Slot| Spec::of(rank, alpha, false);
        assemble(&tensors, (Layout::Transposed, &NAMES), &spec, (alpha, false), config, slots)
    });
    adapter.map_err(|problem| Error::Tensors { path, problem })
}

/// Rank and scale.
fn parse_config(bytes: &[u8]) -> Result<(usize, f64), String> {
    let config: Map<String, Value> = serde_json::from_slice(bytes)
        .map_err(|e| format!("expected a JSON object: {e}; copy or export the adapter again"))?;
    if let Some(found) = config.get("fine_tune_type").filter(|v| *v != "lora") {
        return Err(format!("fine_tune_type is {found}, expected \"lora\"; use a plain LoRA adapter"));
    }
    let parameter = |key: &str| config.get("lora_parameters").and_then(|p| p.get(key));
    let wrong = |key: &str, expected: &str| match parameter(key) {
        Some(found) => format!("lora_parameters.{key} is {found}, expected {expected}"),
        None => format!("lora_parameters.{key} is missing, expected {expected}"),
    };
    let rank = parameter("rank").and_then(Value::as_u64).and_then(|r| usize::try_from(r).ok());
    let rank = rank.filter(|r| *r > 0).ok_or_else(|| wrong("rank", "a whole number above 0"))?;
    let scale = parameter("scale").and_then(Value::as_f64).filter(|s| s.is_finite() && *s != 0.0);
    Ok((rank, scale.ok_or_else(|| wrong("scale", "a number other than 0"))?))
}

/// Path of the module in mlx-lm's `gemma4`, which has the text model inside.
fn module(slot: &Slot) -> String {
    format!("language_model.model.layers.{}.{}", slot.layer, slot.module.peft_path())
}

/// What a key names, in mlx-lm's `gemma4` or its text model alone.
fn parse_name(name: &str) -> Option<Place> {
    let layers = name.strip_prefix("language_model.").unwrap_or(name).strip_prefix("model.layers.")?;
    let (layer, rest) = layer_and_rest(layers)?;
    let (path, half) = match rest.strip_suffix(".lora_a") {
        Some(path) => (path, Half::A),
        None => (rest.strip_suffix(".lora_b")?, Half::B),
    };
    let module = Module::ALL.into_iter().find(|m| m.peft_path() == path && !m.of_experts())?;
    Some((layer, module, half))
}
