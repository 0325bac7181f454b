//! Model families: everything that one architecture has of its own, as a value.
//!
//! A family is a [`Family`] in [`ALL`]. The rest of the program asks that value and never the family's name.

mod chat_layout;
pub mod deepseek2;
pub mod ernie4_5;
pub mod exaone4;
pub mod gemma2;
pub mod gemma3;
pub mod gemma4;
pub mod glm4;
pub mod gpt_oss;
pub mod granite;
pub mod hunyuan;
pub mod lfm2;
pub mod llama;
mod metadata;
pub mod mistral3;
mod module_paths;
pub mod ollama_templates;
pub mod olmo2;
mod open;
pub mod phi3;
mod python_calls;
pub mod qwen2;
pub mod qwen3;
pub mod qwen35;
pub mod qwen_vl;
mod random;
mod refused;
mod role_marks;
pub mod seed_oss;
mod shape;
pub mod smollm3;
mod tool_calls;
mod uniform;

use crate::base::config::Config;
use crate::base::gguf::value::Value;
use crate::base::{Base, Error, Gguf, Module};
use crate::data::template::{BuiltIn, Template};
use crate::data::tokenizer::{Tokenizer, TokenizerSpec};
use random::Tensors;

pub use refused::{REFUSED, Refused, refused};
pub use shape::Shape;

/// An architecture that the program trains.
pub struct Family {
    /// `general.architecture` of its GGUF files, and the prefix of its metadata keys.
    pub name: &'static str,
    /// Its name in messages.
    pub title: &'static str,
    /// A model in Ollama's library, for messages.
    pub example: &'static str,
    /// The shape of the model in a file; fails where the metadata make no sense.
    pub(crate) config: fn(&Gguf) -> Result<Config, Error>,
    /// Constants of its tokenizers.
    pub tokenizer: &'static TokenizerSpec,
    /// The built-in chat layout of a model.
    pub template: fn(&Config) -> &'static BuiltIn,
    /// Sampling settings that its authors recommend.
    pub sampling: SamplingDefaults,
    /// A token that the authors' vocabulary has and others' have not, if others' models share the architecture; empty if it is theirs alone.
    pub authors_token: &'static str,
    /// Names of its modules in adapter files of other programs.
    pub names: &'static AdapterNames,
    /// Published sizes.
    pub shapes: &'static [Shape],
    /// A size for software renderers.
    pub small_shape: Shape,
    /// Metadata of a file of a shape.
    pub(crate) metadata: fn(&Shape) -> Vec<(String, Value)>,
    /// Tensors of a file of a shape.
    tensors: fn(&Shape) -> Tensors,
}

/// Recommended settings of sampling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingDefaults {
    /// Divisor of the logits.
    pub temperature: f64,
    /// Number of the likeliest tokens to choose from.
    pub top_k: usize,
    /// Probability of the likeliest tokens to choose from.
    pub top_p: f64,
}

/// Settings of sampling where nobody recommends any: those of llama.cpp.
const USUAL_SAMPLING: SamplingDefaults = SamplingDefaults { temperature: 0.8, top_k: 40, top_p: 0.95 };

/// The settings of sampling that a model's file names (`general.sampling`), or those that the authors of its family recommend. `None`
/// for a model of other authors with the family's architecture.
pub fn recommended_sampling(base: &Base) -> Option<SamplingDefaults> {
    let family = of(base.config());
    let float =
        |key: &str| base.gguf().get::<f32>(key).ok().flatten().and_then(|x| x.to_string().parse().ok());
    let temperature: Option<f64> = float("general.sampling.temp");
    let top_p: Option<f64> = float("general.sampling.top_p");
    let top_k = base.gguf().get::<u32>("general.sampling.top_k").ok().flatten().map(|k| k as usize);
    let tokens = base.gguf().get::<&[String]>("tokenizer.ggml.tokens").ok().flatten().unwrap_or_default();
    let authors = family.authors_token.is_empty() || tokens.iter().any(|token| token == family.authors_token);
    let usual = if authors { family.sampling } else { USUAL_SAMPLING };
    let named = temperature.is_some() || top_p.is_some() || top_k.is_some();
    (authors || named).then(|| SamplingDefaults {
        temperature: temperature.unwrap_or(usual.temperature),
        top_k: top_k.unwrap_or(usual.top_k),
        top_p: top_p.unwrap_or(usual.top_p),
    })
}

/// The settings of sampling for a model.
pub fn sampling(base: &Base) -> SamplingDefaults {
    recommended_sampling(base).unwrap_or(USUAL_SAMPLING)
}

/// The texts that end a reply of a model: the token in which answers of `template` end, and those of the family that the vocabulary has.
pub fn stops(template: &Template, tokenizer: &Tokenizer) -> Vec<String> {
    let end = template.reply_end(tokenizer).filter(|id| tokenizer.is_special(*id));
    let mut stops: Vec<String> = end.map(|id| tokenizer.decode(&[id])).into_iter().collect();
    for name in tokenizer.spec().turn_end.iter().filter(|name| tokenizer.id(name).is_some()) {
        if !stops.iter().any(|stop| stop == name) {
            stops.push((*name).to_owned());
        }
    }
    stops
}

/// Every family.
pub const ALL: [&Family; 28] = [
    &gemma4::FAMILY,
    &gemma3::FAMILY,
    &gemma2::FAMILY,
    &qwen35::FAMILY,
    &qwen35::FAMILY_MOE,
    &qwen3::FAMILY,
    &qwen3::FAMILY_MOE,
    &qwen2::FAMILY,
    &qwen2::FAMILY_MOE,
    &qwen_vl::FAMILY,
    &qwen_vl::FAMILY_MOE,
    &qwen_vl::FAMILY_2,
    &llama::FAMILY,
    &mistral3::FAMILY,
    &smollm3::FAMILY,
    &granite::FAMILY,
    &granite::FAMILY_MOE,
    &olmo2::FAMILY,
    &exaone4::FAMILY,
    &ernie4_5::FAMILY,
    &glm4::FAMILY,
    &phi3::FAMILY,
    &hunyuan::FAMILY,
    &seed_oss::FAMILY,
    &lfm2::FAMILY,
    &lfm2::FAMILY_MOE,
    &gpt_oss::FAMILY,
    &deepseek2::FAMILY,
];

/// Names of a family's modules in adapter files of other programs.
#[derive(Debug)]
pub struct AdapterNames {
    /// A module's path inside transformers' decoder layer, as PEFT's keys spell it: `self_attn.q_proj`.
    pub peft: fn(Module) -> &'static str,
    /// A module's paths inside mlx-lm's decoder layer. mlx-lm has gate and up of experts apart: two paths.
    pub mlx: fn(Module) -> &'static [&'static str],
    /// Path of the decoder layers in transformers' class for the text model alone (`…ForCausalLM`).
    pub causal_lm_layers: &'static str,
    /// Path of the decoder layers in transformers' class with vision and audio towers (`…ForConditionalGeneration`).
    pub conditional_generation_layers: &'static str,
    /// Path of the decoder layers in mlx-lm's model.
    pub mlx_layers: &'static str,
    /// Whether transformers' router is a bare parameter, which PEFT lists in `target_parameters`, not a linear module.
    pub router_is_parameter: bool,
    /// Whether transformers has the rows of gate and up of experts in turn, a row of the gate first. Elsewhere, and here, all
    /// rows of the gate come first.
    pub gate_up_alternate: bool,
    /// The names in models of the family that have matrices as one ([`crate::base::config::LayerConfig::fused`]), where others have not.
    pub where_fused: Option<&'static AdapterNames>,
}

impl AdapterNames {
    /// The modules that PEFT adapts as bare parameters, each with the parameter's path inside a decoder layer.
    pub fn parameters(&self) -> Vec<(Module, String)> {
        let experts = [Module::FfnGateUpExps, Module::FfnDownExps].map(|m| (m, (self.peft)(m).to_string()));
        let router = (Module::FfnGateInp, format!("{}.weight", (self.peft)(Module::FfnGateInp)));
        experts.into_iter().chain(self.router_is_parameter.then_some(router)).collect()
    }

    /// The name of a module in PEFT's `target_modules`: the last part of its path. The router and the experts keep the whole
    /// path, because `proj` alone is another module's name in GGUF and experts are listed in `target_parameters`. The matrices
    /// of a shared expert keep `shared_expert`, which tells them from those of a dense block. Several modules are called `out_proj`: that of
    /// delta nets alone is known by the last part.
    pub fn peft_name(&self, module: Module) -> &'static str {
        let path = (self.peft)(module);
        match module {
            Module::FfnGateInp | Module::FfnGateUpExps | Module::FfnDownExps => path,
            Module::ShortconvOutProj => path,
            Module::AttnOutput if path.ends_with(".out_proj") => path,
            Module::FfnGateShexp | Module::FfnUpShexp | Module::FfnDownShexp => {
                path.trim_start_matches("mlp.")
            }
            _ => path.rsplit('.').next().unwrap_or(path),
        }
    }
}

/// The family called `name`, by its `general.architecture`.
pub fn named(name: &str) -> Option<&'static Family> {
    ALL.into_iter().find(|family| family.name == name)
}

/// The family of a model.
///
/// # Panics
/// If `config` was not read by a family.
pub fn of(config: &Config) -> &'static Family {
    named(config.architecture).expect("a family read the config")
}

/// Names of a model's modules in adapter files of other programs.
pub fn names(config: &Config) -> &'static AdapterNames {
    let names = of(config).names;
    let is_fused = config.layers.iter().any(|l| !l.fused.is_empty());
    names.where_fused.filter(|_| is_fused).unwrap_or(names)
}

/// The built-in chat layout of a model.
pub fn template(config: &Config) -> &'static BuiltIn {
    (of(config).template)(config)
}

/// The names of every published size.
pub fn shape_names() -> Vec<&'static str> {
    ALL.into_iter().flat_map(|family| family.shapes).map(|shape| shape.name).collect()
}

/// The size for software renderers called `name`.
pub fn small_shape(name: &str) -> Option<Shape> {
    ALL.into_iter().map(|family| family.small_shape).find(|shape| shape.name == name)
}

/// The module that a user means by its name in GGUF, or in PEFT for any family.
pub fn module(name: &str) -> Option<Module> {
    let known = |module: &Module| all_names().any(|names| names.peft_name(*module) == name);
    let gguf = Module::ALL.into_iter().find(|module| module.gguf_name() == name);
    gguf.or_else(|| Module::ALL.into_iter().find(known))
}

/// The names of every family.
fn all_names() -> impl Iterator<Item = &'static AdapterNames> {
    ALL.iter().flat_map(|family| [Some(family.names), family.names.where_fused]).flatten()
}

/// Every name that [`module`] knows.
pub fn module_names() -> impl Iterator<Item = &'static str> {
    // Parts of a matrix that transformers has alone have its name there.
    let whole = Module::ALL.into_iter().filter(|module| !Module::AttnKvB.fused().contains(module));
    let peft = all_names().flat_map(move |names| whole.clone().map(|module| names.peft_name(module)));
    Module::ALL.into_iter().map(Module::gguf_name).chain(peft)
}
