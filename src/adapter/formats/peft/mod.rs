//! PEFT folders: `adapter_config.json` and `adapter_model.safetensors`, as PEFT 0.21 writes and loads them.
//!
//! Tensors are F32 and named `base_model.model.<module>.lora_A.weight` `[R, in]` and `….lora_B.weight` `[out, R]`.
//!
//! The matrices of experts are parameters of the module `experts` (`target_parameters`), which PEFT wraps once per parameter,
//! with the wrapper of down on the outside. So the tensors of down are named `experts.lora_A` `[E·R, in]`, and those of gate
//! and up `experts.base_layer.lora_A` if both are adapted. Source: PEFT `tuners/lora/layer.py` (`ParamWrapper`), `tuners/tuners_utils.py` (`_inject_parameters`).

mod config;
mod tensors;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use config::{AdapterConfig, read_config};
pub(in crate::adapter) use config::{PICKLE, PICKLED};
pub use tensors::read;
pub(in crate::adapter) use tensors::read_slots;

use super::layout::{Half, MatrixLayout, Order};
use super::safetensors_file;
use crate::adapter::lora::{Adapter, Pair, Slot};
use crate::adapter::{Error, WriteOptions};
use crate::base::Module;
use crate::base::config::Config;
use crate::families::{self, AdapterNames};
use crate::files;

/// File of the tensors.
pub(in crate::adapter) const TENSORS: &str = "adapter_model.safetensors";
/// File of everything else.
const CONFIG: &str = "adapter_config.json";

/// Names of modules in the transformers class that an adapter is for.
#[derive(Clone, Copy, Debug)]
pub struct Naming {
    names: &'static AdapterNames,
    /// Path of the list of text layers.
    layers: &'static str,
    /// The order of values.
    order: Order,
}

impl Naming {
    /// Names in the class of the text model alone: `model.layers.N`.
    pub fn causal_lm(config: &Config) -> Naming {
        let names = families::names(config);
        Naming { names, layers: names.causal_lm_layers, order: Order::of(config) }
    }

    /// Names in the class with vision and audio towers: `model.language_model.layers.N`.
    pub fn conditional_generation(config: &Config) -> Naming {
        let names = families::names(config);
        Naming { names, layers: names.conditional_generation_layers, order: Order::of(config) }
    }

    fn path(self, module: Module) -> &'static str {
        (self.names.peft)(module)
    }

    /// Path of an adapted module: `model.layers.3.self_attn.q_proj`.
    pub fn module(self, slot: &Slot) -> String {
        format!("{}.{}.{}", self.layers, slot.layer, self.path(slot.module))
    }

    /// Path of the module that has a slot's tensors. For experts this is a wrapper; `nested`: it is inside another wrapper.
    fn wrapper(self, slot: &Slot, nested: bool) -> String {
        let path = match slot.module.of_experts() {
            true if nested => format!("{}.base_layer", self.experts()),
            true => self.experts().into(),
            false => self.path(slot.module).to_string(),
        };
        format!("{}.{}.{path}", self.layers, slot.layer)
    }

    /// Path of the module that has the matrices of experts: `experts`.
    fn experts(self) -> &'static str {
        let path = self.path(Module::FfnDownExps);
        path.rsplit_once('.').map_or(path, |(experts, _)| experts)
    }

    /// Whether PEFT adapts a module as a parameter of transformers' class.
    fn is_parameter(self, module: Module) -> bool {
        self.names.parameters().iter().any(|(parameter, _)| *parameter == module)
    }

    /// The value of `target_parameters`: the slots that are parameters, such as the matrices of experts.
    fn target_parameters<'a>(self, slots: impl IntoIterator<Item = &'a Slot>) -> Vec<String> {
        let parameters = slots.into_iter().filter(|s| self.is_parameter(s.module));
        let name = |slot: &Slot| match slot.module.of_experts() {
            true => self.module(slot),
            false => format!("{}.weight", self.module(slot)),
        };
        parameters.map(name).collect()
    }

    /// A regular expression for `target_modules` that fully matches the modules of `slots`, without parameters, and no others.
    ///
    /// It is exact because layers that share keys have no `k_proj`, and because bare names also match modules of the towers,
    /// which PEFT cannot adapt (transformers wraps those in another kind of layer).
    pub fn target_modules<'a>(self, slots: impl IntoIterator<Item = &'a Slot>) -> String {
        let mut by_layer: BTreeMap<usize, Vec<Module>> = BTreeMap::new();
        for slot in slots.into_iter().filter(|s| !self.is_parameter(s.module)) {
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

/// Writes a PEFT folder for the class of `naming`. Existing files of other names stay, see [`files::write_folder`].
pub fn write(dir: &Path, adapter: &Adapter, naming: Naming, options: &WriteOptions) -> Result<(), Error> {
    let files = serialize(adapter, naming, options)?;
    Ok(files::write_folder(dir, &files.each_ref().map(|(name, bytes)| (*name, &bytes[..])))?)
}

/// Serializes the folder's files, as names and contents. Equal adapters give equal bytes.
///
/// Fails if the adapter has no matrices, or values that are not finite.
///
/// The fingerprint is in the metadata of the tensors, which all readers ignore. Older versions of PEFT reject unknown keys in
/// the configuration.
pub fn serialize(
    adapter: &Adapter,
    naming: Naming,
    options: &WriteOptions,
) -> Result<[(&'static str, Vec<u8>); 2], Error> {
    // PEFT's experts share one rank.
    let rank = |slot: &Slot| if slot.module.of_experts() { adapter.rank } else { adapter.rank_of(slot) };
    let ranks: BTreeMap<Slot, usize> = adapter.pairs.keys().map(|slot| (*slot, rank(slot))).collect();
    let tensors = match ranks.values().all(|rank| *rank == adapter.rank) {
        true => serialize_pairs(&adapter.pairs, adapter.rank, naming, options.metadata())?,
        false => {
            let cut = |slot: &Slot| (*slot, adapter.cut(slot, ranks[slot]));
            let pairs: BTreeMap<Slot, Pair> = adapter.pairs.keys().map(cut).collect();
            serialize_ranked(&pairs, &|slot| ranks[slot], naming, options.metadata())?
        }
    };
    Ok([(TENSORS, tensors), (CONFIG, config::serialize(adapter, &ranks, naming, options))])
}

/// Serializes matrices, or their gradients, under PEFT's names as a safetensors file with `metadata`.
pub fn serialize_pairs(
    pairs: &BTreeMap<Slot, Pair>,
    rank: usize,
    naming: Naming,
    metadata: HashMap<String, String>,
) -> Result<Vec<u8>, Error> {
    serialize_ranked(pairs, &|_| rank, naming, metadata)
}

fn serialize_ranked(
    pairs: &BTreeMap<Slot, Pair>,
    rank: &dyn Fn(&Slot) -> usize,
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
                    "{name} of {module} contains {value}: training diverged; lower the learning rate"
                ));
            }
            let (shape, _) = MatrixLayout::Rows.shape(half, rank(slot), slot);
            let values = MatrixLayout::store_rows(half, values, rank(slot), slot, &naming.order);
            stored.push((format!("base_model.model.{module}.{name}.weight"), shape, values));
        }
    }
    for (name, shape, values) in &stored {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(values))
            .expect("a pair has the lengths of its slot and rank");
        views.push((name, view));
    }
    // PEFT's own files have this key.
    metadata.insert("format".into(), "pt".into());
    safetensors_file::to_bytes(views, metadata).or_else(refuse)
}
