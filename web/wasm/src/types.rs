//! Types of requests, events and results. `wasm-bindgen` generates the TypeScript types from them.

use rullama_train::model::Plan;
use rullama_train::run::metrics;
use rullama_train::run::pace;
use serde::{Deserialize, Serialize};
use tsify::Tsify;

/// A file in memory. The path includes folders.
#[derive(Clone, Serialize, Deserialize, Tsify)]
pub struct FileEntry {
    pub path: String,
    #[serde(with = "serde_bytes")]
    #[tsify(type = "Uint8Array")]
    pub bytes: Vec<u8>,
}

/// The GPU and its limits.
#[derive(Serialize, Tsify)]
#[serde(rename_all = "camelCase")]
pub struct GpuInfo {
    /// Name, driver and backend, on one line.
    pub name: String,
    /// Whether this is a software renderer: slow, same results.
    pub software: bool,
    /// Kernels that run on it.
    pub kernels: String,
    /// Why f16 is not used although the device has it.
    pub failed_self_test: Option<String>,
    pub limits: GpuLimits,
}

#[derive(Serialize, Tsify)]
#[serde(rename_all = "camelCase")]
pub struct GpuLimits {
    pub max_buffer_size: u64,
    pub max_storage_buffer_binding_size: u64,
    pub max_storage_buffers_per_shader_stage: u32,
    pub max_compute_workgroup_storage_size: u32,
}

/// Scores on the validation samples.
#[derive(Serialize, Tsify)]
pub struct Scores {
    /// Mean loss over the loss tokens.
    pub eval_loss: f64,
    /// `exp(eval_loss)`.
    pub eval_perplexity: f64,
    /// Share of the loss tokens that the model predicts as the likeliest, from 0 to 1.
    pub eval_accuracy: f64,
    /// Number of loss tokens.
    pub eval_tokens: usize,
}

impl From<metrics::Scores> for Scores {
    fn from(s: metrics::Scores) -> Scores {
        Scores {
            eval_loss: s.eval_loss,
            eval_perplexity: s.eval_perplexity,
            eval_accuracy: s.eval_accuracy,
            eval_tokens: s.eval_tokens,
        }
    }
}

/// A line of the memory plan.
#[derive(Clone, Serialize, Tsify)]
pub struct PlanLine {
    pub what: String,
    pub bytes: u64,
}

/// The GPU memory that is needed: per purpose and in total.
#[derive(Clone, Serialize, Tsify)]
pub struct MemoryPlan {
    pub lines: Vec<PlanLine>,
    pub bytes: u64,
}

impl From<&Plan> for MemoryPlan {
    fn from(plan: &Plan) -> MemoryPlan {
        let used = plan.bytes.iter().filter(|(_, bytes)| *bytes > 0);
        let lines = used.map(|(what, bytes)| PlanLine { what: what.to_string(), bytes: *bytes });
        MemoryPlan { lines: lines.collect(), bytes: plan.total() }
    }
}

/// Counts of a set of samples.
#[derive(Clone, Serialize, Tsify)]
pub struct Counts {
    pub samples: usize,
    pub tokens: usize,
    /// Number of loss tokens.
    pub loss_tokens: usize,
}

/// Text of a sample whose tokens all have a loss, or all have none.
#[derive(Clone, Serialize, Tsify)]
pub struct SamplePiece {
    pub text: String,
    pub loss: bool,
}

/// A sample as a table shows it.
#[derive(Clone, Serialize, Tsify)]
#[tsify(missing_as_null)]
pub struct SampleRow {
    /// File and line.
    pub origin: String,
    /// The part that it plays in training: chosen, rejected, …; null for an example to imitate.
    pub side: Option<String>,
    pub tokens: usize,
    pub loss_tokens: usize,
    /// The whole text, or the start of a long one.
    pub pieces: Vec<SamplePiece>,
    /// The values of the columns that rewards read; null where there are none.
    pub expected: Option<String>,
}

/// The picked samples, and a recipe that fits them and the base.
#[derive(Clone, Serialize, Tsify)]
pub struct Samples {
    pub counts: Counts,
    /// The first samples.
    pub rows: Vec<SampleRow>,
    /// Tokens of every sample.
    pub lengths: Vec<usize>,
    /// The format of every file, in one line.
    pub files: Vec<String>,
    pub warnings: Vec<String>,
    /// The recipe that `rullama-train init` proposes.
    pub recipe: String,
    /// Steps and learning rate of that recipe, with the reason.
    pub proposal: String,
}

/// The work of a run, from which its time follows once the speed of the device is known.
#[derive(Clone, Serialize, Tsify)]
pub struct Work {
    /// Tokens of all steps.
    pub tokens: usize,
    /// Evaluations, with those before the first and after the last step.
    pub evaluations: usize,
    /// Tokens of training that take about as long as one evaluation.
    pub evaluation_tokens: usize,
}

impl From<pace::Work> for Work {
    fn from(work: pace::Work) -> Work {
        let pace::Work { tokens, evaluations, evaluation_tokens } = work;
        Work { tokens, evaluations, evaluation_tokens }
    }
}

/// What a recipe resolves to.
#[derive(Clone, Serialize, Tsify)]
#[tsify(missing_as_null)]
pub struct Check {
    /// The recipe with every default filled in, as TOML.
    pub recipe: String,
    /// The base in one line: layers, width, vocabulary.
    pub base: String,
    /// Trainable parameters.
    pub parameters: usize,
    /// Description of the chat template.
    pub template: String,
    /// Optimizer steps of the whole run.
    pub steps: usize,
    pub train: Counts,
    pub validation: Counts,
    pub work: Work,
    pub plan: MemoryPlan,
    /// The rewards that it learns from, each in a sentence; empty for other objectives.
    pub rewards: Vec<String>,
    /// The completions of a step in words; null for objectives that draw none.
    pub tries: Option<String>,
    /// Warnings: truncated samples, duplicates, an adapter of another base, …
    pub warnings: Vec<String>,
}

/// A message of a conversation.
#[derive(Deserialize, Tsify)]
pub struct Message {
    #[tsify(type = "\"system\" | \"user\" | \"assistant\"")]
    pub role: String,
    pub content: String,
}

/// Sampling options. The defaults are the recommendations of Gemma's authors.
#[derive(Default, Deserialize, Tsify)]
#[serde(default)]
pub struct Sampling {
    /// Sampling temperature; 0 always takes the likeliest token. Default: 1.
    #[tsify(optional)]
    pub temperature: Option<f64>,
    /// Sample from this many of the likeliest tokens; 0: all. Default: 64.
    #[tsify(optional)]
    pub top_k: Option<usize>,
    /// Sample from the likeliest tokens with this total probability. Default: 0.95.
    #[tsify(optional)]
    pub top_p: Option<f64>,
    /// Sample tokens with at least this fraction of the highest probability. Default: 0.
    #[tsify(optional)]
    pub min_p: Option<f64>,
    /// Repetition penalty for tokens that occurred already. Default: 1 (none).
    #[tsify(optional)]
    pub repetition_penalty: Option<f64>,
    /// Random seed. Default: 0.
    #[tsify(optional)]
    pub seed: Option<u32>,
    /// Maximum number of tokens. Default: 256.
    #[tsify(optional)]
    pub max_new_tokens: Option<usize>,
    /// Texts that end the reply.
    #[tsify(optional)]
    pub stop: Option<Vec<String>>,
}

/// A request to the engine.
#[derive(Deserialize, Tsify)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Request {
    Samples { recipe: String, files: Vec<FileEntry> },
    Check { recipe: String, files: Vec<FileEntry> },
    Train { recipe: String, files: Vec<FileEntry>, checkpoint: Vec<FileEntry> },
    Chat { adapter: Vec<FileEntry>, messages: Vec<Message>, sampling: Sampling },
    Export { adapter: Vec<FileEntry>, to: String },
    Measure { adapter: Vec<FileEntry>, ids: Vec<u32>, labels: Vec<i32> },
}

/// Results of one sample, for comparing devices.
#[derive(Serialize, Tsify)]
pub struct Measured {
    /// Mean loss over the loss tokens.
    pub loss: f64,
    /// Logits `[T, V]` after the softcap.
    #[tsify(type = "Float32Array")]
    #[serde(with = "serde_bytes")]
    pub logits: Vec<u8>,
    /// Gradients under PEFT's names, as a safetensors file.
    #[serde(with = "serde_bytes")]
    #[tsify(type = "Uint8Array")]
    pub gradients: Vec<u8>,
}

/// An error.
#[derive(Serialize, Tsify)]
#[tsify(missing_as_null)]
pub struct Problem {
    #[tsify(type = "\"recipe\" | \"base\" | \"lost\" | \"other\"")]
    pub kind: &'static str,
    pub message: String,
    /// The key of the recipe, `section.key`.
    pub key: Option<String>,
    /// Line and column in the recipe, in characters from 1.
    pub line: Option<u32>,
    pub column: Option<u32>,
}
