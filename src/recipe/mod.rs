//! The recipe of a run: a strict format, in TOML or JSON.
//!
//! Every key has a type, a range and a default. An unknown key is an error. `recipes/chat.toml` documents all keys. Paths
//! are relative to the working directory.

mod changes;
mod error;
mod fields;
mod keys;
mod kinds;
mod lora;
mod objective;
mod read;
mod renames;
mod schema;
mod sections;
mod source;
mod values;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

pub use changes::Change;
pub use error::{Place, RecipeError};
pub use lora::{Layers, Pattern, rank_of};
pub use objective::{LossType, ObjectiveKeys, ObjectiveName};
pub use read::split_override;
pub use schema::{SCHEMA_URL, schema};
pub use source::Syntax;
pub use values::{BestMetric, Cache, Switch, TargetModules, Template};

use crate::adapter::{AdapterPath, Format as AdapterFormat};
use crate::base::Fingerprint;
pub use crate::data::dataset::{Field, Format as DataFormat, Invalid, Overlong};
pub use crate::data::template::TrainOn;
use crate::gpu::{Backend, KernelSetting};
pub use crate::talk::metrics::Metric;
pub use crate::train::OptimizerKind;
pub use crate::train::schedule::LrScheduler;

/// The settings of a whole run, with every default filled in.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recipe {
    /// The frozen base model.
    pub model: Model,
    /// The LoRA adapter.
    pub lora: Lora,
    /// The samples, and how they become tokens.
    pub data: Data,
    /// The optimization.
    pub train: Train,
    /// Evaluation during the run.
    pub eval: Eval,
    /// The files that the run writes.
    pub output: Output,
    /// Destinations of measurements besides the files of the run.
    pub log: Log,
    /// The GPU and its kernels.
    pub device: Device,
}

/// `[model]`: the base model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Model {
    /// `tiny` (the model in `models/`), the path of a `.gguf` file, or an Ollama tag.
    pub base: String,
    /// Fingerprint that the base must have. The resolved recipe of a run contains the fingerprint of its base.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text")]
    pub fingerprint: Option<Fingerprint>,
}

fn as_text<S: Serializer>(text: &Option<impl ToString>, serializer: S) -> Result<S::Ok, S::Error> {
    text.as_ref().map(ToString::to_string).serialize(serializer)
}

/// `[lora]`: the adapter.
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
    /// Matrices that get an adapter.
    pub target_modules: TargetModules,
    /// Layers that get an adapter; all where it is empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Layers>,
    /// Ranks of some matrices. Their alpha follows, so that every matrix has one scale.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rank_pattern: BTreeMap<Pattern, usize>,
    /// Adapters of any [`AdapterFormat`] whose weighted sum training starts from, with a new optimizer state.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_from: Vec<AdapterPath>,
    /// Whether to load adapters that were trained on another model than `model.base`.
    pub allow_other_base: bool,
}

/// `[data]`: the samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Data {
    /// Files, folders or patterns of training samples. Empty if [`Data::sources`] lists them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub train: Vec<PathBuf>,
    /// Files, folders or patterns of validation samples. Empty if `val_size` splits them off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub valid: Vec<PathBuf>,
    /// Validation samples to split off the training samples: 0 for none, below 1 a fraction, otherwise a count.
    pub val_size: f64,
    /// Format of the samples.
    pub format: DataFormat,
    /// Keys that the records have under other names.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_table")]
    pub fields: Vec<Field>,
    /// System message of conversations that have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Chat template that renders conversations.
    pub template: Template,
    /// Tokens of a conversation that are loss tokens.
    pub train_on: TrainOn,
    /// Maximum number of tokens in a row, whether it holds one sample or several packed ones; [`crate::run::fitted`] sets it
    /// where a recipe does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_seq_len: Option<usize>,
    /// The treatment of longer samples.
    pub overlong: Overlong,
    /// The treatment of invalid records.
    pub invalid: Invalid,
    /// Whether several samples are packed into one row.
    pub packing: bool,
    /// Whether each epoch has its own random order, drawn from the seed.
    pub shuffle: bool,
    /// Folder in which tokenized files are cached between runs.
    pub cache: Cache,
    /// GiB that a compressed or Parquet file may take once decompressed.
    pub max_file_size: f64,
    /// `[[data.sources]]`: training samples with a weight and a format per source, instead of `train`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<DataSource>,
}

/// Tokens in a row unless samples or base require another number.
pub(crate) const USUAL_ROW: usize = 2048;

impl Data {
    /// Tokens in a row.
    pub fn row(&self) -> usize {
        self.max_seq_len.unwrap_or(USUAL_ROW)
    }

    /// All sources of training samples. The paths of `train` have weight 1.
    pub fn training(&self) -> Vec<DataSource> {
        let plain = |path: &PathBuf| DataSource {
            path: path.clone(),
            weight: 1.0,
            format: self.format,
            train_on: self.train_on,
            fields: self.fields.clone(),
        };
        self.train.iter().map(plain).chain(self.sources.iter().cloned()).collect()
    }
}

/// One `[[data.sources]]` entry.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DataSource {
    /// File, folder or pattern.
    pub path: PathBuf,
    /// Number of times that an epoch shows each sample. For a fraction, each epoch draws different samples.
    pub weight: f64,
    /// Format of its samples; `data.format` unless set.
    pub format: DataFormat,
    /// Tokens that are loss tokens; `data.train_on` unless set.
    pub train_on: TrainOn,
    /// Keys that its records have under other names; `data.fields` unless set.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_table")]
    pub fields: Vec<Field>,
}

fn as_table<S: Serializer>(fields: &[Field], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(fields.iter().map(|(key, from)| (key, from)))
}

/// `[train]`: the optimization.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Train {
    /// Seed of the adapter's initial values, the sample order and the dropout masks.
    pub seed: u64,
    /// Passes over the training samples, unless `max_steps` is set.
    pub epochs: usize,
    /// Number of optimizer steps; overrides `epochs`, as in transformers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<usize>,
    /// The objective of training.
    #[serde(flatten)]
    pub objective: ObjectiveKeys,
    /// Rows per forward and backward pass.
    pub batch_size: usize,
    /// Forward and backward passes per optimizer step.
    pub gradient_accumulation_steps: usize,
    /// Shares of each step, each of which one process computes; if unset, as many as there are processes. Results depend on it by
    /// rounding alone, and not on the number of processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<usize>,
    /// The rule that turns gradients into updates.
    pub optimizer: OptimizerKind,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// AdamW's decay of the first moment, in `[0, 1)`.
    pub adam_beta1: f64,
    /// AdamW's decay of the second moment, in `[0, 1)`.
    pub adam_beta2: f64,
    /// Term that AdamW adds to its denominator for numerical stability.
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
    /// Gradients are clipped to this L2 norm over the whole adapter; 0 disables clipping.
    pub max_grad_norm: f64,
    /// Whether the backward pass recomputes activations instead of keeping them.
    pub gradient_checkpointing: Switch,
    /// GiB of GPU memory that the plan may use, with `gradient_checkpointing = "auto"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<f64>,
    /// Whether the experts of a mixture stay in host memory and are copied to the device layer by layer. With `Auto`, as few
    /// layers as `memory_limit` requires.
    pub offload_experts: Switch,
    /// Number of steps with an infinite loss or gradient that are skipped before the run stops.
    pub max_skipped_steps: usize,
    /// Whether the run stops when its loss has risen far above its start.
    pub stop_if_diverged: bool,
}

/// `[eval]`: evaluation during the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Eval {
    /// Optimizer steps between evaluations; 0 evaluates only before the first and after the last step.
    pub steps: usize,
    /// Prompts that the model answers at every evaluation.
    pub samples: Vec<String>,
    /// Maximum length of an answer, in tokens.
    pub max_new_tokens: usize,
    /// Whether general questions are asked after the last step, which the data is not about.
    pub general: bool,
    /// Metrics of generated answers to questions of the validation data.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<Metric>,
    /// Maximum number of validation samples whose answers are generated; set if there are metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric_samples: Option<usize>,
    /// Pattern of [`Metric::Regex`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
    /// Measure by which evaluations are compared.
    pub best_metric: BestMetric,
    /// Whether to export the adapter of the best evaluation instead of the last one.
    pub keep_best: bool,
    /// Number of evaluations without a better one after which the run ends; 0 disables early stopping.
    pub early_stopping_patience: usize,
}

/// `[output]`: the files that the run writes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Output {
    /// Folder of the run.
    pub dir: PathBuf,
    /// Formats of the final adapter.
    pub export: Vec<AdapterFormat>,
    /// `base_model_name_or_path` in `adapter_config.json`; `model.base` unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_model_name: Option<String>,
    /// Model that a finished run creates in Ollama, from base and adapter merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ollama: Option<String>,
    /// Optimizer steps between checkpoints; 0 writes one only at the end, or when the run is stopped.
    pub save_steps: usize,
    /// Number of checkpoints to keep.
    pub save_total_limit: usize,
}

/// `[log]`: where measurements go besides the files of the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Log {
    /// Whether the run writes `metrics.csv`.
    pub csv: bool,
    /// Command for the shell that gets every event as a line of JSON on its stdin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook: Option<String>,
}

/// `[device]`: the GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Device {
    /// Graphics API.
    pub backend: Backend,
    /// Part of the GPU's name, in upper or lower case. If unset, a discrete GPU is preferred over an integrated one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Kernels to run.
    pub kernels: KernelSetting,
    /// Whether the fastest way to compute each product is found at the GPU's first use.
    pub tune: bool,
}
