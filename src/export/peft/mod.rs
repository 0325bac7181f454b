//! PEFT folders: `adapter_config.json` and `adapter_model.safetensors`, as PEFT 0.21 writes and loads them.
//!
//! Tensors are F32 and named `base_model.model.<module>.lora_A.weight` `[R, in]` and `.lora_B.weight` `[out, R]`. Experts' matrices
//! are parameters without a module of their own (`target_parameters`): PEFT wraps `experts` for each, for down outside,
//! so that their tensors are called `experts.lora_A` `[E·R, in]`, and those of gate and up `experts.base_layer.lora_A` where both are
//! adapted. Source: PEFT `tuners/lora/layer.py` (`ParamWrapper`), `tuners/tuners_utils.py` (`_inject_parameters`).

mod config;
mod tensors;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use config::{AdapterConfig, read_config};
pub use tensors::read;
pub(super) use tensors::read_slots;

use super::pairs::{Half, Layout};
use super::{Error, Options, safetensors_file};
use crate::adapter::lora::{Adapter, Pair, Slot};
use crate::base::Module;
use crate::base::config::Config;
use crate::families::{self, AdapterNames};
use crate::files;

/// File of the tensors.
pub(super) const TENSORS: &str = "adapter_model.safetensors";
/// File of everything else.
const CONFIG: &str = "adapter_config.json";

/// Names of modules in a class of transformers' that the adapter is for.
#[derive(Clone, Copy, Debug)]
pub struct Naming {
    names: &'static AdapterNames,
    /// Path of the list of text layers.
    layers: &'static str,
}

impl Naming {
    /// Names in the class of the text model alone: `model.layers.N`.
    pub fn causal_lm(config: &Config) -> Naming {
        let names = families::of(config).names;
        Naming { names, layers: names.causal_lm_layers }
    }

    /// Names in the class with vision and audio towers: `model.language_model.layers.N`.
    pub fn conditional_generation(config: &Config) -> Naming {
        let names = families::of(config).names;
        Naming { names, layers: names.conditional_generation_layers }
    }

    fn path(self, module: Module) -> &'static str {
        (self.names.peft)(module)
    }

    /// Path of an adapted module: `model.layers.3.self_attn.q_proj`.
    pub fn module(self, slot: &Slot) -> String {
        format!("{}.{}.{}", self.layers, slot.layer, self.path(slot.module))
    }

    /// Path of what carries a slot's tensors: of experts a wrapper around all of them; `nested` where one stands around it.
    fn wrapper(self, slot: &Slot, nested: bool) -> String {
        let path = match slot.module.of_experts() {
            true if nested => "experts.base_layer",
            true => "experts",
            false => self.path(slot.module),
        };
        format!("{}.{}.{path}", self.layers, slot.layer)
    }

    /// What `target_parameters` lists for those of `slots` that are experts' matrices.
    fn target_parameters<'a>(self, slots: impl IntoIterator<Item = &'a Slot>) -> Vec<String> {
        slots.into_iter().filter(|s| s.module.of_experts()).map(|s| self.module(s)).collect()
    }

    /// A regular expression for `target_modules` that matches, as a whole, the modules of `slots` and no others; experts' are none.
    ///
    /// Exact, because layers that share keys have no `k_proj`, and because the names alone also occur in the towers,
    /// where PEFT cannot attach (transformers wraps those in another kind of layer).
    pub fn target_modules<'a>(self, slots: impl IntoIterator<Item = &'a Slot>) -> String {
        let mut by_layer: BTreeMap<usize, Vec<Module>> = BTreeMap::new();
        for slot in slots.into_iter().filter(|s| !s.module.of_experts()) {
            by_layer.entry(slot.layer).or_default().push(slot.module);
        }
        // Layers with the same modules share one alternative.
        let mut by_modules: BTreeMap<Vec<Module>, Vec<String>> = BTreeMap::new();
        for (layer, modules) in by_layer {
            by_modules.entry(modules).or_default().push(layer.to_string());
        }
        let alternatives: Vec<String> = by_modules
            .iter()
            .map(|(modules, layers)| {
                let paths: Vec<&str> = modules.iter().map(|m| self.path(*m)).collect();
                format!("({}).({})", layers.join("|"), paths.join("|"))
            })
            .collect();
        format!("{}.({})", self.layers, alternatives.join("|")).replace('.', r"\.")
    }
}

/// Writes a PEFT folder for the class that `naming` says; see [`files::write_folder`] for what happens to an existing one.
pub fn write(dir: &Path, adapter: &Adapter, naming: Naming, options: &Options) -> Result<(), Error> {
    let files = serialize(adapter, naming, options)?;
    Ok(files::write_folder(dir, &files.each_ref().map(|(name, bytes)| (*name, &bytes[..])))?)
}

/// The folder's files, names and contents; the same adapter always gives the same bytes.
///
/// Refuses an adapter without matrices, and one with values that are not finite.
///
/// The fingerprint stands in the tensors' metadata, which every reader skips; an unknown key of the configuration would be
/// refused by older ones.
pub fn serialize(
    adapter: &Adapter,
    naming: Naming,
    options: &Options,
) -> Result<[(&'static str, Vec<u8>); 2], Error> {
    let tensors = serialize_pairs(&adapter.pairs, adapter.rank, naming, options.metadata())?;
    Ok([(TENSORS, tensors), (CONFIG, config::serialize(adapter, naming, options))])
}

/// Matrices, or their gradients, under PEFT's names as one safetensors file with `metadata`.
pub fn serialize_pairs(
    pairs: &BTreeMap<Slot, Pair>,
    rank: usize,
    naming: Naming,
    mut metadata: HashMap<String, String>,
) -> Result<Vec<u8>, Error> {
    let refuse = |problem: String| Err(Error::Adapter { problem });
    if pairs.is_empty() {
        return refuse("it has no matrices; choose at least one target module".into());
    }
    let mut views = Vec::with_capacity(2 * pairs.len());
    let mut stored = Vec::with_capacity(2 * pairs.len());
    for (slot, pair) in pairs {
        let outer = Slot { module: Module::FfnDownExps, ..*slot };
        let around = |other: &Slot| (other.layer, other.module) == (outer.layer, outer.module);
        let nested = slot.module == Module::FfnGateUpExps && pairs.keys().any(around);
        let module = naming.wrapper(slot, nested);
        for (half, name, values) in [(Half::A, "lora_A", &pair.a), (Half::B, "lora_B", &pair.b)] {
            if let Some(value) = values.iter().find(|v| !v.is_finite()) {
                return refuse(format!(
                    "{name} of {module} holds {value}: training diverged; lower the learning rate"
                ));
            }
            let (shape, _) = Layout::Rows.shape(half, rank, slot);
            let values = Layout::store_rows(half, values, rank, slot);
            stored.push((format!("base_model.model.{module}.{name}.weight"), shape, values));
        }
    }
    for (name, shape, values) in &stored {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(values))
            .expect("a pair has the lengths that its slot and rank say");
        views.push((name, view));
    }
    // As in PEFT's own files: the tensors are laid out as PyTorch's.
    metadata.insert("format".into(), "pt".into());
    safetensors_file::to_bytes(views, metadata).or_else(refuse)
}
