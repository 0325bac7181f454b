//! Reads and writes `adapter_config.json`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value, json};

use super::{CONFIG, Naming, TENSORS};
use crate::adapter::lora::{Adapter, MAX_RANK, Slot};
use crate::adapter::{Error, WriteOptions};
use crate::base::Module;
use crate::base::config::Config;
use crate::families::{self, AdapterNames};
use crate::files;

/// Maximum number of entries of a pattern: one per matrix of a large model.
const MAX_PATTERNS: usize = 1024;
/// Maximum size of a compiled pattern in bytes; a module's full name takes about 2000.
const MAX_PATTERN: usize = 32 << 10;

/// The parts of `adapter_config.json` that are needed to read the tensors.
pub(super) struct AdapterConfig {
    /// `r`.
    pub rank: usize,
    /// `lora_alpha`.
    pub alpha: f64,
    /// `use_rslora`.
    pub rslora: bool,
    /// Whether `target_parameters` has gate and up of experts but not down.
    pub gate_up_alone: bool,
    rank_pattern: Vec<(Regex, usize)>,
    alpha_pattern: Vec<(Regex, f64)>,
}

impl AdapterConfig {
    /// Rank and alpha of the module `name`: of the first pattern that matches, otherwise the defaults.
    ///
    /// Source: PEFT `get_pattern_key`, `re.match(rf"(.*\.)?({key})$", name)`.
    pub fn of(&self, name: &str) -> (usize, f64) {
        let rank = self.rank_pattern.iter().find(|(key, _)| key.is_match(name)).map(|(_, rank)| *rank);
        let alpha = self.alpha_pattern.iter().find(|(key, _)| key.is_match(name)).map(|(_, alpha)| *alpha);
        (rank.unwrap_or(self.rank), alpha.unwrap_or(self.alpha))
    }
}

/// Keys of PEFT 0.21's `LoraConfig` that change what an adapter computes, with their meaning.
///
/// Keys about the initialisation or the choice of modules do not matter, because the tensors are in the file. Nor does
/// `fan_in_fan_out`, which PEFT turns off for linear modules.
const MUST_BE_OFF: [(&str, &str); 11] = [
    ("alora_invocation_tokens", "activated LoRA"),
    ("arrow_config", "Arrow routing"),
    ("kasa_config", "KaSA"),
    ("layer_replication", "replicated layers"),
    ("lora_bias", "a bias on lora_B"),
    ("modules_to_save", "fully trained modules"),
    ("monteclora_config", "MonteCLoRA"),
    ("trainable_token_indices", "trained token embeddings"),
    ("use_bdlora", "block-diagonal LoRA"),
    ("use_dora", "DoRA"),
    ("use_qalora", "QA-LoRA"),
];

/// Initialisations that also change the base, so that the matrices alone are not the adapter.
const CHANGED_BASE: [&str; 5] = ["pissa", "corda", "olora", "loftq", "lora_ga"];

/// File of the tensors in folders of older versions.
pub(in crate::adapter) const PICKLE: &str = "adapter_model.bin";
/// Why that is not read.
pub(in crate::adapter) const PICKLED: &str = "contains adapter_model.bin, a pickle, which may run code and is not read; convert it in that folder: python3 -c \"import torch, \
     safetensors.torch as s; s.save_file(torch.load('adapter_model.bin', 'cpu', weights_only=True), 'adapter_model.safetensors')\"";

/// Reads and checks `adapter_config.json`.
///
/// Fails if the folder or the file is missing or damaged, if the adapter is not a plain LoRA, if `r` is not a positive
/// integer, or if `lora_alpha` is not a finite number other than 0.
pub(super) fn read_config(dir: &Path, config: &Config) -> Result<AdapterConfig, Error> {
    let bytes = read_file(dir, CONFIG)?;
    parse(&bytes, families::names(config))
        .map_err(|problem| Error::Config { path: dir.join(CONFIG), problem })
}

fn parse(bytes: &[u8], names: &AdapterNames) -> Result<AdapterConfig, String> {
    let config: Map<String, Value> = serde_json::from_slice(bytes)
        .map_err(|e| format!("expected a JSON object: {e}; copy or export the adapter again"))?;
    let expect = |key: &str, expected: &str| match config.get(key) {
        Some(found) => format!("{key} is {found}, expected {expected}"),
        None => format!("{key} is missing, expected {expected}"),
    };
    if config.get("peft_type") != Some(&json!("LORA")) {
        return Err(expect("peft_type", "\"LORA\"; only LoRA adapters can be loaded"));
    }
    for (key, meaning) in MUST_BE_OFF {
        if let Some(found) = config.get(key).filter(|v| !is_off(v)) {
            return Err(format!("{key} is {found}: {meaning} is not supported; use a plain LoRA adapter"));
        }
    }
    if config.get("bias").is_some_and(|v| !v.is_null() && v != "none") {
        return Err(expect("bias", "\"none\"; trained biases are not supported"));
    }
    if let Some(Value::String(start)) = config.get("init_lora_weights")
        && CHANGED_BASE.iter().any(|name| start.to_lowercase().starts_with(name))
    {
        return Err(format!(
            "init_lora_weights is \"{start}\", which also changed the base; save the adapter again with PEFT's \
             `path_initial_model_for_weight_conversion`, which turns it into a plain LoRA adapter"
        ));
    }
    let count =
        |v: &Value| v.as_u64().and_then(|r| usize::try_from(r).ok()).filter(|r| (1..=MAX_RANK).contains(r));
    let ranks = format!("a whole number from 1 to {MAX_RANK}");
    let rank = config.get("r").and_then(count).ok_or_else(|| expect("r", &ranks))?;
    let alpha = config.get("lora_alpha").and_then(Value::as_f64).filter(|a| a.is_finite() && *a != 0.0);
    let alpha = alpha.ok_or_else(|| expect("lora_alpha", "a number other than 0"))?;
    let rslora = match config.get("use_rslora") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(rslora)) => *rslora,
        Some(_) => return Err(expect("use_rslora", "true or false")),
    };
    let rank_pattern = pattern(&config, "rank_pattern", &ranks, count)?;
    let factor = |v: &Value| v.as_f64().filter(|a| a.is_finite() && *a != 0.0);
    let alpha_pattern = pattern(&config, "alpha_pattern", "a number other than 0", factor)?;
    let parameters = target_parameters(&config, names)?;
    let has = |module: Module| parameters.contains(&module);
    let gate_up_alone = has(Module::FfnGateUpExps) && !has(Module::FfnDownExps);
    Ok(AdapterConfig { rank, alpha, rslora, gate_up_alone, rank_pattern, alpha_pattern })
}

/// The modules in `target_parameters`, all of which must be matrices of experts or routers.
fn target_parameters(config: &Map<String, Value>, names: &AdapterNames) -> Result<Vec<Module>, String> {
    let key = "target_parameters";
    let entries = match config.get(key) {
        None => return Ok(Vec::new()),
        Some(off) if is_off(off) => return Ok(Vec::new()),
        Some(Value::Array(entries)) => entries,
        Some(found) => return Err(format!("{key} is {found}, expected a list of names")),
    };
    let module = |entry: &Value| {
        let name = entry.as_str().unwrap_or_default();
        // PEFT takes the end of a parameter's name; an entry may be longer than ours, too.
        let is_end = |name: &str, of: &str| {
            of.strip_suffix(name).is_some_and(|start| start.is_empty() || start.ends_with('.'))
        };
        let ends =
            |(_, path): &(Module, String)| !name.is_empty() && (is_end(path, name) || is_end(name, path));
        let parameters = names.parameters();
        let found = parameters.iter().find(|parameter| ends(parameter)).map(|(module, _)| *module);
        found.ok_or_else(|| {
            let expected: Vec<String> = parameters.iter().map(|(_, path)| format!("{path:?}")).collect();
            let expected = expected.join(" or ");
            format!("{key} has {entry}, expected {expected}; use an adapter of this model")
        })
    };
    entries.iter().map(module).collect()
}

/// Reads values per module, with a regular expression of its name, in the order of the file.
fn pattern<T>(
    config: &Map<String, Value>,
    key: &str,
    expected: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<(Regex, T)>, String> {
    let entries = match config.get(key) {
        None => return Ok(Vec::new()),
        Some(off) if is_off(off) => return Ok(Vec::new()),
        Some(Value::Object(entries)) => entries,
        Some(found) => return Err(format!("{key} is {found}, expected an object of module names")),
    };
    if entries.len() > MAX_PATTERNS {
        return Err(format!("{key} has {} entries, expected at most {MAX_PATTERNS}", entries.len()));
    }
    let entry = |(name, value): (&String, &Value)| {
        let regex = RegexBuilder::new(&format!(r"^(?:.*\.)?(?:{name})$"))
            .size_limit(MAX_PATTERN)
            .dfa_size_limit(MAX_PATTERN)
            .build()
            .map_err(|error| match error {
                regex::Error::CompiledTooBig(_) => {
                    format!("{key} has {name:?}, which is too large; expected a module's name")
                }
                _ => format!("{key} has {name:?}, expected a module's name or a regular expression"),
            })?;
        let value =
            read(value).ok_or_else(|| format!("{key} has {value} for {name:?}, expected {expected}"))?;
        Ok((regex, value))
    };
    entries.iter().map(entry).collect()
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        _ => false,
    }
}

/// Serializes the file as PEFT does: sorted keys, indented by two spaces.
///
/// It has only keys that every PEFT since 0.8 knows, because PEFT rejects unknown keys. The other keys have PEFT's defaults.
pub(super) fn serialize(
    adapter: &Adapter,
    ranks: &BTreeMap<Slot, usize>,
    naming: Naming,
    options: &WriteOptions,
) -> Vec<u8> {
    let alpha = adapter.alpha;
    // Matrices of another rank have an alpha of their own, which gives them the scale of all others.
    let others = || ranks.iter().filter(|(_, rank)| **rank != adapter.rank);
    let rank_pattern: Map<String, Value> =
        others().map(|(slot, rank)| (naming.module(slot), json!(rank))).collect();
    let own_alpha =
        |rank: usize| adapter.scale() * if adapter.rslora { (rank as f64).sqrt() } else { rank as f64 };
    let alpha_pattern: Map<String, Value> =
        others().map(|(slot, rank)| (naming.module(slot), json!(own_alpha(*rank)))).collect();
    let parameters = naming.target_parameters(adapter.pairs.keys());
    let modules = naming.target_modules(adapter.pairs.keys());
    let only_parameters = adapter.pairs.keys().all(|slot| naming.is_parameter(slot.module));
    // PEFT declares an integer, but also loads a fraction.
    let whole = alpha.fract() == 0.0 && alpha.abs() < (1u64 << 53) as f64;
    let mut config = json!({
        "alpha_pattern": alpha_pattern,
        "auto_mapping": null,
        "base_model_name_or_path": options.base_model,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "layers_pattern": null,
        "layers_to_transform": null,
        "lora_alpha": if whole { json!(alpha as i64) } else { json!(alpha) },
        // PEFT does not support dropout on parameters.
        "lora_dropout": if parameters.is_empty() { options.dropout } else { 0.0 },
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": adapter.rank,
        "rank_pattern": rank_pattern,
        "revision": null,
        "target_modules": if only_parameters { json!([]) } else { json!(modules) },
        "task_type": "CAUSAL_LM",
        "use_rslora": adapter.rslora,
    });
    // Older versions do not know this key.
    if !parameters.is_empty() {
        config["target_parameters"] = json!(parameters);
        config.sort_all_objects();
    }
    serde_json::to_vec_pretty(&config).expect("an object with text keys is JSON")
}

/// Reads a file of a PEFT folder.
pub(super) fn read_file(dir: &Path, name: &str) -> Result<Vec<u8>, Error> {
    let path = dir.join(name);
    files::read(&path).map_err(|source| {
        let refuse = |path: &Path, problem: String| Error::Read { path: path.into(), problem };
        if files::is_file(dir) {
            refuse(dir, format!("is a file; give the folder that contains {CONFIG} and {TENSORS}"))
        } else if source.kind() != ErrorKind::NotFound {
            refuse(&path, format!("{source}; check the path and its permissions"))
        } else if !files::exists(dir) {
            refuse(dir, format!("does not exist; give a folder that contains {CONFIG} and {TENSORS}"))
        } else if files::exists(&dir.join(PICKLE)) && name == TENSORS {
            refuse(dir, PICKLED.into())
        } else {
            refuse(dir, format!("has no {name}; a PEFT folder contains {CONFIG} and {TENSORS}"))
        }
    })
}
