//! Requests and results, in the fields of the page's types (`web/wasm/src/types.rs`).

use rullama_train::data::batch::Sample;
use rullama_train::gpu::Gpu;
use rullama_train::model::Plan;
use rullama_train::run::pace::Work;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A file that the page has sent.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sent {
    /// Path that the recipe names it by.
    pub path: String,
    /// Id of the upload.
    pub upload: String,
}

/// A recipe, with the base and the files that it names.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    pub base: String,
    pub recipe: String,
    pub files: Vec<Sent>,
}

/// A run to start: from nothing, from the folder of an earlier run, or from the files of a checkpoint.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    pub task: Task,
    /// Name of the run to resume.
    #[serde(default)]
    pub resume: Option<String>,
    /// Files of a checkpoint, `checkpoint-STEP/…`.
    #[serde(default)]
    pub checkpoint: Vec<Sent>,
}

/// A command for the run in progress.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub struct Command {
    pub command: Word,
}

/// The commands that `train --commands` takes, and one to give up a run that has not begun its first step.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    Cancel,
    Stop,
    Pause,
    Resume,
    Checkpoint,
}

impl Word {
    /// The line that the run reads.
    pub fn line(self) -> &'static str {
        match self {
            Word::Cancel => "",
            Word::Stop => "stop\n",
            Word::Pause => "pause\n",
            Word::Resume => "resume\n",
            Word::Checkpoint => "checkpoint\n",
        }
    }
}

/// A message of a conversation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    pub role: String,
    pub content: String,
}

/// Sampling options; the model's own where one is missing.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    pub temperature: Option<f64>,
    pub top_k: Option<usize>,
    pub top_p: Option<f64>,
    pub min_p: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub seed: Option<u32>,
    pub max_new_tokens: Option<usize>,
    pub stop: Option<Vec<String>>,
}

/// A request for a reply.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chat {
    pub base: String,
    pub adapter: Vec<Sent>,
    pub messages: Vec<Message>,
    pub sampling: Sampling,
}

/// A request for an adapter in another format.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Export {
    pub base: String,
    pub adapter: Vec<Sent>,
    pub to: String,
}

/// A request to merge an adapter into its base.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Merge {
    pub base: String,
    pub adapter: Vec<Sent>,
    /// Name of the model, as Ollama names models.
    pub name: String,
    /// Whether to create it in Ollama.
    pub ollama: bool,
}

/// Counts of a set of samples.
#[derive(Clone, Debug, Serialize)]
pub struct Counts {
    samples: usize,
    tokens: usize,
    loss_tokens: usize,
}

impl Counts {
    pub fn of(samples: &[Sample]) -> Counts {
        Counts {
            samples: samples.len(),
            tokens: samples.iter().map(|sample| sample.ids.len()).sum(),
            loss_tokens: samples.iter().map(Sample::loss_tokens).sum(),
        }
    }
}

/// A resolved recipe.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// The recipe with every default filled in, as TOML.
    pub recipe: String,
    pub base: String,
    pub parameters: usize,
    pub template: String,
    pub steps: usize,
    pub train: Counts,
    pub validation: Counts,
    pub work: Work,
    pub plan: Value,
    pub rewards: Vec<String>,
    pub tries: Option<String>,
    pub warnings: Vec<String>,
}

/// The page's memory plan.
pub fn plan(plan: &Plan) -> Value {
    let used = plan.bytes.iter().filter(|(_, bytes)| *bytes > 0);
    let lines: Vec<Value> = used.map(|(what, bytes)| json!({ "what": what, "bytes": bytes })).collect();
    json!({ "lines": lines, "bytes": plan.total() })
}

/// The page's description of the GPU.
pub fn gpu(gpu: &Gpu) -> Value {
    let limits = gpu.limits();
    json!({
        "name": gpu.description(), "software": gpu.is_software(),
        "kernels": gpu.kernels().to_string(), "failedSelfTest": gpu.failed_self_test(),
        "limits": {
            "maxBufferSize": limits.max_buffer_size,
            "maxStorageBufferBindingSize": limits.max_storage_buffer_binding_size,
            "maxStorageBuffersPerShaderStage": limits.max_storage_buffers_per_shader_stage,
            "maxComputeWorkgroupStorageSize": limits.max_compute_workgroup_storage_size,
        },
    })
}
