//! The recipe of a run: a strict format, in TOML or JSON.
//!
//! Every key has a type, a range and a default. An unknown key is an error. `recipes/chat.toml` documents all keys. Paths
//! are relative to the working directory.

mod changes;
mod data;
mod distill;
mod error;
mod eval;
mod examples;
mod fields;
mod grpo;
mod keys;
mod kinds;
mod lora;
mod manual;
mod objective;
mod output;
mod read;
mod renames;
mod rewards;
mod schema;
mod sections;
mod source;
mod train;
mod values;

use serde::Serialize;

pub use changes::Change;
pub(crate) use data::USUAL_ROW;
pub use data::{Data, DataSource};
pub use distill::{Distill, DivergenceName, SELF};
pub use error::{Place, RecipeError};
pub use eval::Eval;
pub use examples::example;
pub use grpo::{Grpo, GrpoLossType, ImportanceSamplingLevel};
pub use lora::{Layers, Lora, Pattern, rank_of};
pub use objective::{LossType, ObjectiveKeys, ObjectiveName};
pub use output::Output;
pub use read::split_override;
pub use rewards::{JudgeReward, LengthReward, Reward, RewardKind};
pub use schema::{SCHEMA_URL, schema};
pub use sections::{Device, Log, Model};
pub use source::{Syntax, toml_string};
pub use train::Train;
pub use values::{BestMetric, Cache, Switch, TargetModules, Template};

pub use crate::data::dataset::{Field, Format as DataFormat, Invalid, Overlong};
pub use crate::data::template::TrainOn;
pub use crate::talk::metrics::Metric;
pub use crate::train::OptimizerKind;
pub use crate::train::objective::advantages::ScaleRewards;
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
    /// Learning from a second model; `None` for objectives without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distill: Option<Distill>,
    /// `[[rewards]]`: functions that judge completions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rewards: Vec<Reward>,
    /// Learning from rewards; `None` for objectives without completions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpo: Option<Grpo>,
    /// Evaluation during the run.
    pub eval: Eval,
    /// The files that the run writes.
    pub output: Output,
    /// Destinations of measurements besides the files of the run.
    pub log: Log,
    /// The GPU and its kernels.
    pub device: Device,
}
