//! `bench`: speed and memory of training steps or replies on random tokens, and the time that each kernel takes.

mod decode;
mod fits;
mod groups;
mod offload;
mod parallel;
mod peak;
mod plan;
mod random;
mod ranks;
mod results;
mod steps;
mod sweep;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use rullama_train::base::{Base, Module};
use rullama_train::data::compare::Supervision;
use rullama_train::gpu::{Backend, GpuOptions, KernelSetting, Place};
use rullama_train::model::plan::Recompute;
use rullama_train::ops::adamw::AdamW;
use rullama_train::recipe::{ObjectiveKeys, ObjectiveName};
use rullama_train::train::Optimizer;
use rullama_train::train::ranks::Ranks;

use super::setup::device::Device;
use super::setup::tuning::Tuning;
use super::{output, refuse_renamed};
pub use plan::smallest;
use sweep::{Series, Varied};

/// Options of `bench`.
#[derive(Args)]
pub struct BenchArgs {
    /// "tiny", a name that `models` lists, the path of a .gguf file, or a published size (e2b, qwen3-8b; docs/models.md lists them). A size
    /// has random weights that are generated on the GPU; nothing is downloaded.
    #[arg(add = crate::cli::complete::base())]
    base: String,
    /// Sequences per step.
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Micro-batches of --batch sequences per step; with several GPUs, for each of them.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    accumulate: usize,
    /// Shares of a step, which are computed apart: see train.shares of a recipe [default: the number of processes].
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["decode", "sweep", "plan"])]
    shares: Option<usize>,
    /// Tokens per sequence.
    #[arg(long, default_value_t = 512)]
    sequence: usize,
    /// Rank of the adapter, which is on every linear layer.
    #[arg(long, default_value_t = 16)]
    rank: usize,
    /// Adapt the matrices of a mixture's experts too.
    #[arg(long)]
    experts: bool,
    /// Steps to time, after one warm-up step.
    #[arg(long, default_value_t = 3)]
    steps: usize,
    /// For long sequences: run one whole step, which gives the speed and the time of each kernel, after one of 512 tokens per sequence.
    #[arg(long, conflicts_with_all = ["steps", "decode", "sweep", "plan", "fits"])]
    once: bool,
    /// Percentage of the tokens that are loss tokens.
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(1..=100))]
    loss_share: u8,
    /// Objective, like train.objective in a recipe: sft, dpo, kto, orpo, simpo or distill. Neighbouring sequences are pairs, or are rated
    /// good and bad; the teacher of distill is even.
    #[arg(long, value_name = "NAME", default_value = "sft", value_parser = objective, conflicts_with_all = ["decode", "sweep", "plan"])]
    objective: ObjectiveName,
    /// Recompute the activations of every layer in the backward pass.
    #[arg(long)]
    recompute: bool,
    /// GiB of GPU memory to use: activations of as many layers as necessary are recomputed.
    #[arg(long, value_name = "GIB", conflicts_with = "recompute")]
    memory_limit: Option<f64>,
    /// Keep all experts in host memory, not only those that do not fit --memory-limit.
    #[arg(long, conflicts_with = "decode")]
    offload_experts: bool,
    /// Keep the other matrices of so many layers in host memory [default: as --memory-limit makes fastest, or none].
    #[arg(long, value_name = "LAYERS", conflicts_with = "decode")]
    offload_layers: Option<usize>,
    /// Copy inputs of layers to host memory in the forward pass, and back in the backward pass: true or false [default: as
    /// --memory-limit makes fastest, or false].
    #[arg(long, value_name = "BOOL", conflicts_with = "decode")]
    offload_inputs: Option<bool>,
    /// GiB of host memory for matrices and activations that are not on the GPU [default: what is available now].
    #[arg(long, value_name = "GIB")]
    host_memory: Option<f64>,
    /// Print the memory that the step needs, without running it: neither weights nor activations are allocated.
    #[arg(long, conflicts_with_all = ["decode", "sweep", "recompute", "memory_limit", "offload_experts", "offload_layers", "offload_inputs"])]
    plan: bool,
    /// Print the longest sequence that trains on GPUs of 6 to 24 GB, without running a step. Ignores --sequence. With the base "all",
    /// for every published size.
    #[arg(long, group = "written", conflicts_with_all = ["decode", "plan", "recompute", "memory_limit", "offload_experts", "offload_layers", "offload_inputs"])]
    fits: bool,
    /// With --fits, time one step of the longest sequence too; of longer ones than this, a step of this many tokens.
    #[arg(long, value_name = "TOKENS", requires = "fits")]
    time: Option<usize>,
    /// Use only the buffer and binding sizes that every browser with WebGPU guarantees.
    #[arg(long)]
    webgpu_limits: bool,
    /// Time a series of steps with growing tokens, layers, width or memory limit, and write a page with charts of time and memory.
    #[arg(long, value_name = "WHAT", group = "written", conflicts_with_all = ["decode", "experts"])]
    sweep: Option<Varied>,
    /// Page to write with --sweep [default: BASE-by-WHAT.html]. With --fits, a table to write; bases that it has are not measured
    /// again.
    #[arg(long, value_name = "FILE", requires = "written")]
    out: Option<PathBuf>,
    /// Time replies instead: generate this many tokens after a prompt of --sequence tokens, without and with an adapter.
    #[arg(long, value_name = "TOKENS")]
    decode: Option<usize>,
    /// With --decode: generate so many replies at once, 1 to 64, which read one prompt.
    #[arg(long, value_name = "COUNT", requires = "decode", value_parser = clap::value_parser!(u64).range(1..=64))]
    parallel: Option<u64>,
    /// Adapter for --decode, in any export format [default: a random one of --rank on every linear layer]; may be repeated.
    #[arg(long = "adapter", value_name = "PATH[=WEIGHT]", requires = "decode")]
    adapters: Vec<String>,
    /// Kernels to use, like device.kernels in a recipe: auto, f32, f16 or cooperative.
    #[arg(long, value_name = "KERNELS", default_value = "auto", value_parser = super::kernels)]
    kernels: KernelSetting,
    /// Same as --kernels f32.
    #[arg(long, conflicts_with = "kernels")]
    plain: bool,
    /// Compute every product in the usual way, like device.tune = false in a recipe.
    #[arg(long)]
    no_tuning: bool,
    /// Interface to the GPU, like device.backend in a recipe: auto, cuda, vulkan, metal or dx12.
    #[arg(long, value_name = "BACKEND", default_value = "auto", value_parser = super::backend)]
    backend: Backend,
    /// GPU to use: part of its name.
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[arg(long, hide = true)]
    tier: Option<String>,
    #[arg(long, hide = true)]
    device: Option<String>,
}

/// A value of `--objective`.
fn objective(name: &str) -> Result<ObjectiveName, serde_json::Error> {
    serde_json::from_value(name.into())
}

/// Times what the options ask for and prints the results.
pub fn run(args: &BenchArgs) -> Result<ExitCode> {
    crate::cli::ranks::run(|all| {
        if all.size() > 1 {
            ranks::run(args, all)?
        } else {
            time(args)?
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn time(args: &BenchArgs) -> Result<()> {
    refuse_renamed("--tier", "--kernels", &args.tier)?;
    refuse_renamed("--device", "--gpu", &args.device)?;
    let numbers = [
        ("--batch", args.batch),
        ("--accumulate", args.accumulate),
        ("--sequence", args.sequence),
        ("--rank", args.rank),
        ("--steps", args.steps),
    ];
    if args.objective.supervision() == Supervision::Prompts {
        bail!(
            "--objective {} draws completions; time it with `check RECIPE --measure 3`",
            args.objective.name()
        );
    }
    if args.objective.supervision() == Supervision::Pairs && !args.batch.is_multiple_of(2) {
        bail!("--objective {} compares pairs of sequences; give an even --batch", args.objective.name());
    }
    if let Some((flag, _)) = numbers.into_iter().find(|(_, number)| *number == 0) {
        bail!("{flag} must be at least 1");
    }
    output::progress::silence(args.json);
    match (args.sweep, args.decode) {
        (Some(varied), _) => sweep(args, varied),
        (None, Some(tokens)) => match args.parallel {
            Some(count) => parallel::run(args, tokens, count as usize),
            None => decode::run(args, tokens),
        },
        (None, None) if args.plan => plan::run(args),
        (None, None) if args.fits => fits::run(args),
        (None, None) => steps::run(args),
    }
}

impl BenchArgs {
    fn open_gpu(&self, place: Place) -> Result<Device> {
        let kernels = if self.plain { KernelSetting::F32 } else { self.kernels };
        let (name, webgpu_limits) = (self.gpu.clone(), self.webgpu_limits);
        let device = Device::open(GpuOptions { backend: self.backend, name, webgpu_limits, place }, kernels)?;
        if let Some(gib) = self.host_memory {
            device.set_host_memory(gib_bytes(gib));
        }
        Ok(device)
    }

    fn tuning(&self) -> Tuning {
        Tuning::wanted(!self.no_tuning)
    }

    /// The objective with its default settings.
    fn objective(&self) -> ObjectiveKeys {
        ObjectiveKeys { name: self.objective, ..ObjectiveKeys::default() }
    }

    /// Shares of a step of `ranks`.
    fn shares(&self, ranks: &Ranks) -> Result<usize> {
        let (shares, size) = (self.shares.unwrap_or(ranks.size()), ranks.size());
        let most = self.accumulate * size;
        if shares == 0 || !shares.is_multiple_of(size) || shares > most {
            bail!(
                "--shares {shares}: expected a multiple of {size}, the number of processes, of at most {most} micro-batches"
            );
        }
        Ok(shares)
    }

    fn recompute(&self) -> Recompute {
        match (self.recompute, self.memory_limit) {
            (true, _) => Recompute::Always,
            (false, Some(gib)) => Recompute::Within(gib_bytes(gib)),
            (false, None) => Recompute::Never,
        }
    }

    /// The modules to adapt: every linear layer, and with `--experts` those of the experts.
    fn modules(&self) -> Vec<Module> {
        let experts = Module::ALL.into_iter().filter(|m| self.experts && m.of_experts());
        Module::ALL_LINEAR.iter().copied().chain(experts).collect()
    }
}

fn gib_bytes(gib: f64) -> u64 {
    (gib * (1u64 << 30) as f64) as u64
}

/// Refuses sequences that are longer than the base's context.
fn check_sequence(base: &Base, sequence: usize) -> Result<()> {
    let longest = base.config().context_length;
    if sequence > longest {
        bail!(
            "--sequence {sequence} is longer than the context of {}, {longest} tokens; lower it",
            base.name()
        );
    }
    Ok(())
}

/// The optimizer with its usual settings.
const OPTIMIZER: Optimizer = Optimizer {
    adam: Some(AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }),
    weight_decay: 0.0,
    max_grad_norm: 1.0,
};

fn sweep(args: &BenchArgs, varied: Varied) -> Result<()> {
    let series = Series {
        varied,
        base: &args.base,
        batch: args.batch,
        sequence: args.sequence,
        rank: args.rank,
        steps: args.steps,
        loss_share: args.loss_share,
        recompute: args.recompute(),
        out: args.out.as_deref(),
        tuning: args.tuning(),
        json: args.json,
    };
    series.check()?;
    let gpu = args.open_gpu(Place::ALONE)?;
    series.run(&gpu)
}
