//! What to do: the strict recipe, in TOML or JSON.
//!
//! Every key has a type, a range and a default; a key that is not known is an error. `recipes/chat.toml` is the
//! manual of all keys. Paths are relative to the working directory.

mod changes;
mod error;
mod fields;
mod keys;
mod sections;
mod source;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, Serializer};

pub use changes::Change;
pub use error::{Place, RecipeError};
pub use source::Format;

use crate::base::Fingerprint;
use crate::base::Module;
pub use crate::data::dataset::{Format as DataFormat, Invalid, Overlong};
pub use crate::data::template::TrainOn;
use crate::export::AdapterPath;
pub use crate::export::Format as Export;
use crate::families;
use crate::files;
pub use crate::gpu::{Backend, KernelSetting};
use source::Source;

/// A whole run, with every default filled in.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recipe {
    /// The frozen base.
    pub model: Model,
    /// The adapter.
    pub lora: Lora,
    /// The samples.
    pub data: Data,
    /// The optimization.
    pub train: Train,
    /// What is measured on the way.
    pub eval: Eval,
    /// What is written, and where.
    pub output: Output,
    /// Which GPU.
    pub device: Device,
}

/// `[model]`
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Model {
    /// `tiny` (the model in `models/`), the path of a `.gguf` file, or an Ollama tag.
    pub base: String,
    /// The only base that will do; a finished run's resolved recipe has that of its own.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text")]
    pub fingerprint: Option<Fingerprint>,
}

fn as_text<S: Serializer>(text: &Option<impl ToString>, serializer: S) -> Result<S::Ok, S::Error> {
    text.as_ref().map(ToString::to_string).serialize(serializer)
}

/// `[lora]`
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lora {
    /// Rank `R` of every `B·A`.
    pub rank: usize,
    /// Numerator of the scale; `2·rank` unless set. See [`crate::adapter::lora::scale`].
    pub alpha: f64,
    /// Whether the scale is `alpha/√rank` instead of `alpha/rank`.
    pub rslora: bool,
    /// Probability in `[0, 1)` that an input element of `A` is zeroed in training.
    pub dropout: f64,
    /// Which matrices carry an adapter.
    pub target_modules: TargetModules,
    /// Adapters of any [`Export`] form whose weighted sum is the starting point: a warm start, not a resume.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_from: Vec<AdapterPath>,
    /// Whether adapters that were trained on another model than `model.base` may be loaded.
    pub allow_other_base: bool,
}

/// Which kinds of matrices carry an adapter.
#[derive(Clone, Debug, PartialEq)]
pub enum TargetModules {
    /// Every kind that the model has.
    AllLinear,
    /// These kinds, in the recipe's order, each once.
    Only(Vec<Module>),
}

impl TargetModules {
    /// The kinds as a list, for [`crate::adapter::lora::slots`].
    pub fn modules(&self) -> &[Module] {
        match self {
            TargetModules::AllLinear => Module::ALL_LINEAR,
            TargetModules::Only(modules) => modules,
        }
    }
}

impl Serialize for TargetModules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            TargetModules::AllLinear => serializer.serialize_str("all-linear"),
            TargetModules::Only(modules) => serializer.collect_seq(modules.iter().map(|m| m.gguf_name())),
        }
    }
}

/// `[data]`
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Data {
    /// Files, folders or patterns of training samples; empty where [`Data::sources`] names them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub train: Vec<PathBuf>,
    /// The same of validation samples; empty where `val_size` splits them off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub valid: Vec<PathBuf>,
    /// Validation samples split off the training samples: 0 none, below 1 a fraction, from 1 on a whole count.
    pub val_size: f64,
    /// Shape of the samples.
    pub format: DataFormat,
    /// How conversations become text.
    pub template: Template,
    /// Which part of them carries loss.
    pub train_on: TrainOn,
    /// Most tokens `T` in one row: in a packed row of several samples, or in a sample of its own.
    pub max_seq_len: usize,
    /// What happens to a sample that is longer.
    pub overlong: Overlong,
    /// What happens to a record that cannot be used.
    pub invalid: Invalid,
    /// Whether samples share rows.
    pub packing: bool,
    /// Whether each epoch draws a new order from the seed.
    pub shuffle: bool,
    /// Where tokens are kept between runs.
    pub cache: Cache,
    /// `[[data.sources]]`: training samples, each kind with its own weight and shape; instead of `train`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<DataSource>,
}

impl Data {
    /// The training samples' sources; `train` is those of weight 1.
    pub fn training(&self) -> Vec<DataSource> {
        let plain = |path: &PathBuf| DataSource {
            path: path.clone(),
            weight: 1.0,
            format: self.format,
            train_on: self.train_on,
        };
        self.train.iter().map(plain).chain(self.sources.iter().cloned()).collect()
    }
}

/// One of `[[data.sources]]`
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DataSource {
    /// File, folder or pattern.
    pub path: PathBuf,
    /// How often an epoch shows each of its samples; of a fraction, each epoch draws other samples.
    pub weight: f64,
    /// Shape of its samples; `data.format` unless set.
    pub format: DataFormat,
    /// Which part of them carries loss; `data.train_on` unless set.
    pub train_on: TrainOn,
}

/// How conversations become text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Template {
    /// What runs the base renders: the built-in layout for Ollama's models, else the file's own template.
    Auto,
    /// The base file's own (`tokenizer.chat_template`).
    Gguf,
    /// The built-in layout of a family, by the family's name.
    BuiltIn(&'static str),
    /// A Jinja file.
    File(PathBuf),
}

impl Template {
    /// What `text` means in a recipe and on the command line.
    pub fn from_name(text: &str) -> Template {
        match text {
            "auto" => Template::Auto,
            "gguf" => Template::Gguf,
            text => match families::named(text) {
                Some(family) => Template::BuiltIn(family.name),
                None => Template::File(text.into()),
            },
        }
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Template::Auto => serializer.serialize_str("auto"),
            Template::Gguf => serializer.serialize_str("gguf"),
            Template::BuiltIn(family) => serializer.serialize_str(family),
            Template::File(path) => path.serialize(serializer),
        }
    }
}

/// Where tokens are kept between runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cache {
    /// In the user's cache folder.
    User,
    /// Nowhere.
    Off,
    /// In this folder.
    Folder(PathBuf),
}

impl Serialize for Cache {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Cache::User => serializer.serialize_bool(true),
            Cache::Off => serializer.serialize_bool(false),
            Cache::Folder(path) => path.serialize(serializer),
        }
    }
}

/// `[train]`
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Train {
    /// Decides the adapter's start, the order and the dropout.
    pub seed: u64,
    /// Passes over the training samples, where `max_steps` is not set.
    pub epochs: usize,
    /// Optimizer steps; overrides `epochs`, as in transformers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<usize>,
    /// Rows in one forward and backward pass.
    pub batch_size: usize,
    /// Forward and backward passes in one optimizer step.
    pub gradient_accumulation_steps: usize,
    /// How gradients become updates.
    pub optimizer: Optimizer,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// AdamW's decay of the first moment, in `[0, 1)`.
    pub adam_beta1: f64,
    /// AdamW's decay of the second moment, in `[0, 1)`.
    pub adam_beta2: f64,
    /// What AdamW adds to its denominator.
    pub adam_epsilon: f64,
    /// Shape of the learning rate after the warm-up.
    pub lr_scheduler: LrScheduler,
    /// Lowest learning rate after the warm-up, as a fraction of the peak.
    pub min_lr_ratio: f64,
    /// Warm-up as a fraction of all optimizer steps; 0 where `warmup_steps` is set.
    pub warmup_ratio: f64,
    /// Warm-up in optimizer steps, instead of `warmup_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<usize>,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Gradients are scaled down to this L2 norm over the whole adapter; 0 = off.
    pub max_grad_norm: f64,
    /// Whether layers keep their activations or compute them again in the backward pass.
    pub gradient_checkpointing: Switch,
    /// GiB that the memory plan may take in all, with `gradient_checkpointing = "auto"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<f64>,
    /// Whether the experts of a mixture stay in host memory and are copied to the device layer by layer; `Auto`: those of as few
    /// layers as `memory_limit` asks for.
    pub offload_experts: Switch,
    /// Steps that may be left out because they are not finite, before the run stops.
    pub max_skipped_steps: usize,
}

/// How gradients become updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Optimizer {
    /// AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101), as `torch.optim.AdamW`.
    Adamw,
    /// Plain gradient descent, as `torch.optim.SGD` without momentum.
    Sgd,
}

/// Shape of the learning rate after the warm-up. See [`crate::train::schedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrScheduler {
    /// Half a cosine from the peak to the minimum.
    Cosine,
    /// A straight line from the peak to the minimum.
    Linear,
    /// The peak.
    Constant,
}

/// What the memory plan may decide, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// The memory plan decides, layer by layer.
    Auto,
    /// For every layer.
    On,
    /// For none.
    Off,
}

impl Serialize for Switch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Switch::Auto => serializer.serialize_str("auto"),
            Switch::On => serializer.serialize_bool(true),
            Switch::Off => serializer.serialize_bool(false),
        }
    }
}

/// `[eval]`
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Eval {
    /// Validation after every so many optimizer steps; 0 = only before the first and after the last.
    pub steps: usize,
    /// User turns that the model answers at every evaluation.
    pub samples: Vec<String>,
    /// Longest answer to them, in tokens.
    pub max_new_tokens: usize,
    /// Whether the adapter with the lowest validation loss is written, rather than the last one.
    pub keep_best: bool,
    /// Evaluations in a row without a lower validation loss after which the run ends; 0 = none.
    pub early_stopping_patience: usize,
}

/// `[output]`
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Output {
    /// The run's folder.
    pub dir: PathBuf,
    /// What is written into it at the end.
    pub export: Vec<Export>,
    /// `base_model_name_or_path` of `adapter_config.json`; unset, it is `model.base`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_model_name: Option<String>,
    /// Optimizer steps from one checkpoint to the next; 0 = only at the end, or where the run is stopped.
    pub save_steps: usize,
    /// Checkpoints that are kept.
    pub save_total_limit: usize,
}

/// `[device]`
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Device {
    /// Which graphics interface.
    pub backend: Backend,
    /// Part of the adapter's name, in any case; unset, the fastest kind of adapter is taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Which kernels it runs.
    pub kernels: KernelSetting,
}

impl Recipe {
    /// Reads a recipe file: JSON if its name ends in `.json`, else TOML. The only access to files besides
    /// [`Recipe::check_files`].
    pub fn read<S: AsRef<str>>(path: &Path, overrides: &[(S, S)]) -> Result<Recipe, RecipeError> {
        let text = files::read_to_string(path)
            .map_err(|source| RecipeError::Read { path: error::absolute(path), source })?;
        let is_json = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
        let format = if is_json { Format::Json } else { Format::Toml };
        Recipe::parse(&text, format, &path.display().to_string(), overrides)
    }

    /// Parses a recipe. `name` stands in messages; each override is (`section.key`, value as on a command line).
    pub fn parse<S: AsRef<str>>(
        text: &str,
        format: Format,
        name: &str,
        overrides: &[(S, S)],
    ) -> Result<Recipe, RecipeError> {
        let parsed = Recipe::parse_sections(text, format, name, overrides);
        // A resolved recipe says who wrote it.
        let newer = text.strip_prefix(RESOLVED_BY).and_then(|rest| rest.split([':', '\n']).next());
        match newer.filter(|found| version(found) > version(env!("CARGO_PKG_VERSION"))) {
            Some(found) => {
                parsed.map_err(|error| RecipeError::Newer { found: found.into(), error: Box::new(error) })
            }
            None => parsed,
        }
    }

    fn parse_sections<S: AsRef<str>>(
        text: &str,
        format: Format,
        name: &str,
        overrides: &[(S, S)],
    ) -> Result<Recipe, RecipeError> {
        let source = Source::parse(text, format, name, overrides)?;
        keys::check(&source)?;
        Ok(Recipe {
            model: sections::model(&source.section("model"))?,
            lora: sections::lora(&source.section("lora"))?,
            data: sections::data(&source.section("data"))?,
            train: sections::train(&source.section("train"))?,
            eval: sections::eval(&source.section("eval"))?,
            output: sections::output(&source.section("output"))?,
            device: sections::device(&source.section("device"))?,
        })
    }

    /// Every default, for [`crate::run::finetune`]: it names no data and writes nothing.
    pub fn new(base: &str) -> Recipe {
        let required = "model.base = 'tiny'\ndata.train = '-'\noutput.dir = '-'";
        let recipe = Recipe::parse::<&str>(required, Format::Toml, "defaults", &[]);
        let mut recipe = recipe.expect("what is required is there");
        (recipe.model.base, recipe.data.train) = (base.into(), Vec::new());
        recipe
    }

    /// The whole recipe as TOML; reading it back gives an equal recipe.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a recipe is tables of plain values")
    }

    /// [`Recipe::to_toml`] under a line that says which version of the program filled in the defaults.
    pub fn to_resolved_toml(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        format!("{RESOLVED_BY}{version}: the recipe with every default filled in\n\n{}", self.to_toml())
    }

    /// The same recipe for no other base than the one with this fingerprint.
    pub fn pinned(&self, fingerprint: &Fingerprint) -> Recipe {
        let model = Model { fingerprint: Some(fingerprint.clone()), ..self.model.clone() };
        Recipe { model, ..self.clone() }
    }

    /// Whether the files that the recipe reads exist; the error shows the absolute path that was tried.
    pub fn check_files(&self) -> Result<(), RecipeError> {
        let data = self.data.train.iter().map(|p| ("data.train", p));
        let sources = self.data.sources.iter().map(|s| ("data.sources", &s.path));
        let valid = self.data.valid.iter().map(|p| ("data.valid", p));
        let template = match &self.data.template {
            Template::File(path) => Some(("data.template", path)),
            _ => None,
        };
        let init = self.lora.init_from.iter().map(|p| ("lora.init_from", &p.path));
        let mut all = data.chain(sources).chain(valid).chain(template).chain(init);
        match all.find(|(_, path)| !files::exists(path) && !crate::data::dataset::files::is_pattern(path)) {
            Some((key, path)) => Err(RecipeError::NoFile { key, path: error::absolute(path) }),
            None => Ok(()),
        }
    }
}

/// How a resolved recipe begins; the version follows.
const RESOLVED_BY: &str = "# rullama-train ";

/// `1.2.3` as numbers that compare; what is no number counts as 0.
fn version(text: &str) -> Vec<u64> {
    text.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0)).collect()
}

/// Splits `section.key=value`, the argument of `--set`.
pub fn split_override(argument: &str) -> Result<(&str, &str), RecipeError> {
    let (key, value) =
        argument.split_once('=').ok_or_else(|| RecipeError::Override { argument: argument.to_owned() })?;
    Ok((key.trim(), value.trim()))
}
