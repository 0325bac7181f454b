//! What goes in and out. TypeScript's types are made of these when `wasm-bindgen` writes its `.d.ts`.

use rullama_train::model::Plan;
use rullama_train::run::metrics::{self, StepMetrics, Timing};
use serde::{Deserialize, Serialize};
use tsify::Tsify;

/// A file in memory; folders are part of the path.
#[derive(Clone, Serialize, Deserialize, Tsify)]
pub struct FileEntry {
    pub path: String,
    #[serde(with = "serde_bytes")]
    #[tsify(type = "Uint8Array")]
    pub bytes: Vec<u8>,
}

/// The device, and what it guarantees.
#[derive(Serialize, Tsify)]
#[serde(rename_all = "camelCase")]
pub struct GpuInfo {
    /// Name, driver and interface, on one line.
    pub name: String,
    /// Whether a CPU plays the GPU: slow, the same numbers.
    pub software: bool,
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

/// How well the model predicts the validation samples.
#[derive(Serialize, Tsify)]
pub struct Scores {
    /// Mean over the tokens that carry loss.
    pub eval_loss: f64,
    /// `e` to that.
    pub eval_perplexity: f64,
    /// Share of those tokens that were the likeliest ones, from 0 to 1.
    pub eval_accuracy: f64,
    /// Their number.
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

/// The device memory that is needed, line by line, and in all.
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

/// Some samples in numbers.
#[derive(Clone, Serialize, Tsify)]
pub struct Counts {
    pub samples: usize,
    pub tokens: usize,
    /// Those that carry loss.
    pub loss_tokens: usize,
}

/// What a recipe comes to, before anything is trained.
#[derive(Clone, Serialize, Tsify)]
pub struct Check {
    /// The recipe with every default filled in, as TOML.
    pub recipe: String,
    /// The base in one line: layers, width, vocabulary.
    pub base: String,
    /// Trainable parameters.
    pub parameters: usize,
    /// The chat template in words.
    pub template: String,
    /// Optimizer steps of the whole run.
    pub steps: usize,
    pub train: Counts,
    pub validation: Counts,
    pub plan: MemoryPlan,
    /// What the user should know: truncated samples, duplicates, another base than the adapter's …
    pub warnings: Vec<String>,
}

/// What happens in a run.
#[derive(Serialize, Tsify)]
#[serde(tag = "event", rename_all = "snake_case")]
#[tsify(missing_as_null)]
pub enum Event {
    /// So many of the base's layers are on the device.
    Loading {
        layers: usize,
        of: usize,
    },
    /// Once, before the first step. `resumed_at` steps are behind it already.
    Plan {
        resumed_at: usize,
        #[serde(flatten)]
        check: Check,
    },
    /// An optimizer step was taken, or skipped because a value in it was not finite.
    Step {
        /// From 1.
        step: usize,
        /// Mean over the tokens that carry loss, before the update; null where it is not finite.
        loss: Option<f64>,
        /// Exponential mean of the losses so far.
        smoothed: Option<f64>,
        accuracy: Option<f64>,
        /// Before clipping.
        grad_norm: Option<f64>,
        /// L2 norm of the update over that of the adapter.
        update_ratio: Option<f64>,
        learning_rate: f64,
        tokens: usize,
        skipped: bool,
        seconds: f64,
        tokens_per_second: f64,
    },
    /// The validation samples after `step` steps; null where there are none.
    Eval {
        step: usize,
        scores: Option<Scores>,
        best: bool,
    },
    /// A reply to one of the recipe's `eval.samples` after `step` steps.
    Sample {
        step: usize,
        prompt: String,
        reply: String,
    },
    /// A warning about the run.
    Notice {
        step: usize,
        notice: String,
    },
    /// The state after `step` steps, as files: `checkpoint-STEP/…`. Save them to resume later.
    Checkpoint {
        step: usize,
        files: Vec<FileEntry>,
    },
    /// No step is taken until the run is resumed.
    Paused {
        step: usize,
    },
    Resumed {
        step: usize,
    },
    /// The run is over.
    Done {
        step: usize,
        /// The step whose adapter it is: with `eval.keep_best` not always the last.
        adapter_of_step: usize,
        /// Whether the user stopped it before its last step.
        stopped: bool,
        /// Why the final check refused the adapter; null if it passed. `adapter` holds it all the same.
        refused: Option<String>,
        /// The adapter as a PEFT folder; null if it equals the initial one.
        adapter: Option<Vec<FileEntry>>,
        /// The output folder: every format of `output.export`, `report.html`, `metrics.jsonl`, `recipe.resolved.toml`.
        files: Vec<FileEntry>,
        /// Duration of all steps in seconds.
        seconds: f64,
    },
}

impl Event {
    pub fn of_step(step: &StepMetrics, timing: &Timing, smoothed: Option<f64>) -> Event {
        let &StepMetrics { step, loss, accuracy, grad_norm, update_ratio, learning_rate, tokens, skipped } =
            step;
        let &Timing { seconds, tokens_per_second, .. } = timing;
        Event::Step {
            step,
            loss,
            smoothed,
            accuracy,
            grad_norm,
            update_ratio,
            learning_rate,
            tokens,
            skipped,
            seconds,
            tokens_per_second,
        }
    }
}

/// A message of a conversation.
#[derive(Deserialize, Tsify)]
pub struct Message {
    #[tsify(type = "\"system\" | \"user\" | \"assistant\"")]
    pub role: String,
    pub content: String,
}

/// How a reply is made; what is left out is as Gemma's authors recommend.
#[derive(Default, Deserialize, Tsify)]
#[serde(default)]
pub struct Sampling {
    /// 0 takes the likeliest token; 1.
    #[tsify(optional)]
    pub temperature: Option<f64>,
    /// 64; 0: all.
    #[tsify(optional)]
    pub top_k: Option<usize>,
    /// 0.95.
    #[tsify(optional)]
    pub top_p: Option<f64>,
    /// 0.
    #[tsify(optional)]
    pub min_p: Option<f64>,
    /// 1.
    #[tsify(optional)]
    pub repetition_penalty: Option<f64>,
    /// Decides every draw; 0.
    #[tsify(optional)]
    pub seed: Option<u32>,
    /// 256.
    #[tsify(optional)]
    pub max_new_tokens: Option<usize>,
    /// Texts that end the reply.
    #[tsify(optional)]
    pub stop: Option<Vec<String>>,
}

/// What is to be done.
#[derive(Deserialize, Tsify)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Request {
    Check { recipe: String, files: Vec<FileEntry> },
    Train { recipe: String, files: Vec<FileEntry>, checkpoint: Vec<FileEntry> },
    Chat { adapter: Vec<FileEntry>, messages: Vec<Message>, sampling: Sampling },
    Export { adapter: Vec<FileEntry>, to: String },
    Measure { adapter: Vec<FileEntry>, ids: Vec<u32>, labels: Vec<i32> },
}

/// What a sample gives, for comparing one device with another.
#[derive(Serialize, Tsify)]
pub struct Measured {
    /// Mean over the tokens that carry loss.
    pub loss: f64,
    /// `[tokens, vocabulary]` after the softcap.
    #[tsify(type = "Float32Array")]
    #[serde(with = "serde_bytes")]
    pub logits: Vec<u8>,
    /// Every gradient under PEFT's names, as a safetensors file.
    #[serde(with = "serde_bytes")]
    #[tsify(type = "Uint8Array")]
    pub gradients: Vec<u8>,
}

/// Why something was not done.
#[derive(Serialize, Tsify)]
#[tsify(missing_as_null)]
pub struct Problem {
    #[tsify(type = "\"recipe\" | \"lost\" | \"other\"")]
    pub kind: &'static str,
    pub message: String,
    /// `section.key` of the recipe.
    pub key: Option<String>,
    /// Line and column of the recipe in characters, both from 1.
    pub line: Option<u32>,
    pub column: Option<u32>,
}
