//! Command-line options that chat, generate and serve share.

use rullama_train::base::Base;
use rullama_train::families;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;
use rullama_train::adapter::AdapterPath;
use rullama_train::gpu::Backend;
use rullama_train::talk::generate::Options;
use rullama_train::talk::sampling::Sampling;

use crate::cli::refuse_renamed;

/// The model: base, adapters, template and GPU.
#[derive(Args)]
pub struct ModelArgs {
    /// Base model: "tiny", a name that `models` lists, hf:ORG/REPO:TYPE, or the path of a .gguf file.
    #[arg(add = crate::cli::complete::base())]
    pub base: String,
    /// Adapter in any export format, optionally with a weight [default weight: 1]. Repeat to add up several adapters.
    #[arg(long = "adapter", value_name = "PATH[=WEIGHT]")]
    pub adapters: Vec<String>,
    /// Accept adapters that were trained on a different base model.
    #[arg(long)]
    pub allow_other_base: bool,
    /// Chat template, like data.template in a recipe: auto, gguf, the name of a model family, or the path of a Jinja file.
    #[arg(long, value_name = "TEMPLATE", default_value = "auto")]
    pub template: String,
    /// Maximum number of tokens of prompt and reply together [default: 8192, or the base's context if that is shorter].
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<usize>,
    /// Keep a mixture's experts in host memory and copy them to the GPU for every token: slow, for a GPU with too little memory.
    #[arg(long)]
    pub offload_experts: bool,
    /// Keep the matrices of all layers in host memory, likewise.
    #[arg(long)]
    pub offload_layers: bool,
    /// Interface to the GPU, like device.backend in a recipe: auto, cuda, vulkan, metal or dx12.
    #[arg(long, value_name = "BACKEND", default_value = "auto", value_parser = crate::cli::backend)]
    pub backend: Backend,
    /// GPU to use: part of its name.
    #[arg(long, value_name = "NAME")]
    pub gpu: Option<String>,
    #[arg(long, hide = true)]
    device: Option<String>,
}

impl ModelArgs {
    /// The model `base` alone, on the GPU that is chosen without options.
    pub fn of(base: &str) -> ModelArgs {
        ModelArgs {
            base: base.into(),
            adapters: Vec::new(),
            allow_other_base: false,
            template: "auto".into(),
            context: None,
            offload_experts: false,
            offload_layers: false,
            backend: Backend::Auto,
            gpu: None,
            device: None,
        }
    }

    /// Refuses options under their old names.
    pub fn check(&self) -> Result<()> {
        refuse_renamed("--device", "--gpu", &self.device)
    }
}

/// Sampling options. An option that is not given has the value that the model's authors recommend.
#[derive(Args)]
pub struct SamplingArgs {
    /// Sampling temperature: above 1 is more random, below 1 less; 0 always takes the likeliest token [default: the model's].
    #[arg(long)]
    temperature: Option<f64>,
    /// Sample from this many of the likeliest tokens only; 0 disables the limit [default: the model's].
    #[arg(long)]
    top_k: Option<usize>,
    /// Sample from the likeliest tokens that together have this probability; 1 disables the limit [default: the model's].
    #[arg(long)]
    top_p: Option<f64>,
    /// Sample only tokens with at least this fraction of the likeliest token's probability; 0 disables the limit.
    #[arg(long, default_value_t = Sampling::GREEDY.min_p)]
    min_p: f64,
    /// Penalty for tokens that occurred already; 1 disables it.
    #[arg(long, default_value_t = Sampling::GREEDY.repetition_penalty)]
    repetition_penalty: f64,
    /// Random seed: the same seed gives the same reply.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Maximum number of tokens per reply.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    max_tokens: usize,
    /// Text that ends the reply and is not part of it; may be repeated.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
}

impl SamplingArgs {
    /// Checks the options, before the model is opened. Errors name the flag.
    pub fn check(&self) -> Result<()> {
        let sampling = self.sampling(Sampling::GREEDY);
        sampling.check().map_err(|problem| anyhow::anyhow!("--{}", problem.replace('_', "-")))?;
        if self.max_tokens == 0 {
            bail!("--max-tokens must be at least 1");
        }
        if self.stop.iter().any(String::is_empty) {
            bail!("--stop must not be empty");
        }
        Ok(())
    }

    /// Maximum number of tokens per reply.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// The temperature, if one is given.
    pub fn temperature(&self) -> Option<f64> {
        self.temperature
    }

    /// The options for a model.
    pub fn options(&self, base: &Base) -> Options {
        let sampling = self.sampling(Sampling::recommended(families::sampling(base)));
        Options { sampling, max_new_tokens: self.max_tokens, stop: self.stop.clone(), logprobs: None }
    }

    fn sampling(&self, usual: Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(usual.temperature),
            top_k: self.top_k.unwrap_or(usual.top_k),
            top_p: self.top_p.unwrap_or(usual.top_p),
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
            ..usual
        }
    }
}

/// Parses the values of `--adapter`.
pub fn adapter_paths(adapters: &[String]) -> Result<Vec<AdapterPath>> {
    adapters.iter().map(|text| adapter_path(text)).collect()
}

/// Parses `PATH` or `PATH=WEIGHT`. An existing path that contains `=` is a path.
fn adapter_path(text: &str) -> Result<AdapterPath> {
    let Some((path, weight)) = text.rsplit_once('=').filter(|_| !Path::new(text).exists()) else {
        return Ok(AdapterPath::whole(text));
    };
    let number = weight.parse().ok().filter(|w: &f64| w.is_finite());
    let number = number.with_context(|| {
        format!(
            "--adapter {text}: invalid weight {weight:?}: expected a number after the last `=`, as in {path}=0.5"
        )
    })?;
    Ok(AdapterPath { path: path.into(), weight: number })
}
