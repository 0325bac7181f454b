//! What chat, generate, serve and the decoding benchmark share: a base, adapters on it, and how tokens are chosen.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;
use pollster::block_on;
use rullama_train::adapter::lora::Adapter;
use rullama_train::base::Base;
use rullama_train::base::config::Config;
use rullama_train::export::{self, AdapterPath};
use rullama_train::families;
use rullama_train::gpu::Backend;
use rullama_train::model::decode::{Lengths, Workspace, longest_context};
use rullama_train::model::{Model, plan};
use rullama_train::recipe::Template;
use rullama_train::run::{Frozen, RunError};
use rullama_train::talk::generate::{CHUNK, Finish, Options, Reply};
use rullama_train::talk::sampling::Sampling;

use super::device::Device;
use super::show;

/// The context where none is asked for.
const CONTEXT: usize = 8192;

/// What replies.
#[derive(Args)]
pub struct ModelArgs {
    /// "tiny", an Ollama tag, or the path of a .gguf.
    base: String,
    /// An adapter of any format, on top of the others, with a weight where that is not 1; may be given several times.
    #[arg(long = "adapter", value_name = "PATH[=WEIGHT]")]
    adapters: Vec<String>,
    /// Take adapters that were trained on another model than the base.
    #[arg(long)]
    allow_other_base: bool,
    /// How conversations become text, as data.template in a recipe: auto, gguf, a family's built-in layout, or the path of a Jinja file.
    #[arg(long, value_name = "TEMPLATE", default_value = "auto")]
    template: String,
    /// Most tokens of prompt and reply together; unset, 8192 or what the base was trained for.
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
    /// Leave a mixture's experts in host memory and copy them to the device for every token: slow, for a GPU that is too small.
    #[arg(long)]
    offload_experts: bool,
    /// Part of the GPU's name.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
}

/// How tokens are chosen. An option that is not given has the value that the model's authors recommend.
#[derive(Args)]
pub struct SamplingArgs {
    /// Flattens (above 1) or sharpens (below 1) the choice; 0 takes the likeliest token [default: the model's].
    #[arg(long)]
    temperature: Option<f64>,
    /// Choose from so many of the likeliest tokens; 0: all [default: the model's].
    #[arg(long)]
    top_k: Option<usize>,
    /// Choose from the likeliest tokens that together have this probability; 1: all [default: the model's].
    #[arg(long)]
    top_p: Option<f64>,
    /// Choose from tokens with at least this share of the likeliest one's probability; 0: all.
    #[arg(long, default_value_t = Sampling::GREEDY.min_p)]
    min_p: f64,
    /// Makes tokens that occurred less likely; 1: not.
    #[arg(long, default_value_t = Sampling::GREEDY.repetition_penalty)]
    repetition_penalty: f64,
    /// Decides every draw: the same seed, the same words.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Longest reply.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    max_tokens: usize,
    /// A text that ends the reply and is not part of it; may be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
}

impl SamplingArgs {
    /// Refuses values out of range, before the model is opened.
    pub fn check(&self) -> Result<()> {
        let sampling = self.sampling(Sampling::GREEDY);
        sampling.check().map_err(|problem| anyhow::anyhow!("--{}", problem.replace('_', "-")))?;
        if self.max_tokens == 0 || self.stop.iter().any(String::is_empty) {
            bail!("--max-tokens starts at 1, and --stop is not empty");
        }
        Ok(())
    }

    /// The options for a model.
    pub fn options(&self, config: &Config) -> Options {
        let sampling = self.sampling(Sampling::recommended(families::of(config).sampling));
        Options { sampling, max_new_tokens: self.max_tokens, stop: self.stop.clone() }
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

/// Everything but the weights on the device.
pub struct Loaded {
    pub frozen: Frozen,
    /// All adapters as one.
    pub adapter: Option<Adapter>,
    /// Paths and weights.
    pub adapters: Vec<AdapterPath>,
    /// The choice that `frozen.template` follows.
    pub template: Template,
    pub gpu: Device,
    lengths: Lengths,
    /// Layers whose experts stay in host memory.
    offloaded: Vec<usize>,
    /// Whether a buffer of the device holds less than the usual context.
    shortened: bool,
}

impl Loaded {
    /// Opens base, adapters and device.
    pub fn open(args: &ModelArgs) -> Result<Loaded> {
        let adapters = weights(&args.adapters)?;
        let template = Template::from_name(&args.template);
        let frozen = Frozen::named(&args.base, &template).map_err(said_as_an_option)?;
        let config = frozen.base.config();
        let adapter = match adapters.is_empty() {
            true => None,
            false => {
                let found = export::load(&adapters, &frozen.base, None, args.allow_other_base.into())?;
                found.notices.iter().for_each(|notice| eprintln!("note: {notice}"));
                Some(found.adapter)
            }
        };

        let trained = config.context_length;
        if let Some(context) = args.context.filter(|c| !(1..=trained).contains(c)) {
            bail!("--context {context}: {} was trained for 1 to {trained} tokens", frozen.base.name());
        }
        let offloaded = if args.offload_experts { plan::with_experts(&frozen.base) } else { Vec::new() };
        if args.offload_experts && offloaded.is_empty() {
            bail!("--offload-experts: {} is no mixture of experts; leave it out", frozen.base.name());
        }
        let gpu = Device::open(Backend::Auto, args.device.as_deref(), false)?;
        let wanted = args.context.unwrap_or(CONTEXT.min(trained));
        let context = longest_context(&gpu, config, wanted);
        if context < wanted && args.context.is_some() {
            bail!(
                "--context {wanted}: the keys and values of a layer fit a buffer of this device up to {context} tokens"
            );
        }
        let (lengths, shortened) = (Lengths { context, chunk: CHUNK }, context < wanted);
        Ok(Loaded { frozen, adapter, adapters, template, gpu, lengths, offloaded, shortened })
    }

    /// Uploads the base, without the experts that stay in host memory.
    pub fn model(&self) -> Result<Model<'_>> {
        let (base, context) = (&self.frozen.base, self.lengths.context);
        Ok(block_on(Model::offloading(&self.gpu, base, context, &self.offloaded, |_| ()))?)
    }

    /// Allocates what all conversations share.
    pub fn workspace<'a>(&'a self, model: &'a Model<'a>) -> Result<Workspace<'a>> {
        let rank = self.adapter.as_ref().map_or(0, |a| a.rank);
        Ok(Workspace::new(&self.gpu, model, self.lengths, rank)?)
    }

    /// Most tokens of a conversation.
    pub fn context(&self) -> usize {
        self.lengths.context
    }

    /// Shows what was opened.
    pub fn show(&self) {
        show::device(&self.gpu);
        let context = show::count(self.context(), "token");
        let why = if self.shortened { ", what a buffer of this device holds" } else { "" };
        show::line("base", format_args!("{}, context of {context}{why}", self.frozen.base.name()));
        if !self.offloaded.is_empty() {
            let layers = show::count(self.offloaded.len(), "layer");
            show::line(
                "offload",
                format_args!(
                    "the experts of {layers} stay in host memory; every token copies them to the device"
                ),
            );
        }
        for AdapterPath { path, weight } in &self.adapters {
            let weight = if *weight == 1.0 { String::new() } else { format!(" × {weight}") };
            show::line("adapter", format_args!("{}{weight}", path.display()));
        }
        show::line("template", show::template(&self.frozen.template, &self.template));
    }
}

fn weights(adapters: &[String]) -> Result<Vec<AdapterPath>> {
    adapters.iter().map(|text| weighted(text)).collect()
}

/// Adapters for `base` as the command line names them, as one.
pub fn read_adapters(adapters: &[String], base: &Base) -> Result<Adapter> {
    Ok(export::load(&weights(adapters)?, base, None, export::OtherBase::Allow)?.adapter)
}

/// What is wrong with a template, under the name that it has on the command line.
fn said_as_an_option(error: RunError) -> anyhow::Error {
    let text = error.to_string();
    match text.contains("data.template") {
        true => anyhow::anyhow!(
            "{}",
            text.replace("data.template = ", "--template ").replace("data.template", "--template")
        ),
        false => error.into(),
    }
}

/// `PATH` or `PATH=WEIGHT`.
fn weighted(text: &str) -> Result<AdapterPath> {
    let Some((path, weight)) = text.rsplit_once('=').filter(|_| !Path::new(text).exists()) else {
        return Ok(AdapterPath::whole(text));
    };
    let number = weight.parse().ok().filter(|w: &f64| w.is_finite());
    let number = number.with_context(|| {
        format!(
            "--adapter {text}: {weight:?} is no weight; expected a number behind the last =, as in {path}=0.5"
        )
    })?;
    Ok(AdapterPath { path: path.into(), weight: number })
}

/// Writes a piece of a reply at once; where nobody reads any more, there is no point in going on. A terminal gets no control
/// characters: a model's words move no cursor.
pub fn say(piece: &str) -> ControlFlow<()> {
    let mut out = std::io::stdout();
    let harmless = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{FFFD}' } else { c };
    let piece: String = match out.is_terminal() {
        true => piece.chars().map(harmless).collect(),
        false => piece.into(),
    };
    match out.write_all(piece.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    }
}

/// Why a reply ended before its end, on stderr.
pub fn say_cut(reply: &Reply, context: usize) {
    match reply.finish {
        Finish::Length => {
            eprintln!("note: the reply was cut after {} tokens (--max-tokens)", reply.ids.len());
        }
        Finish::Context => eprintln!("note: the reply was cut where the context of {context} tokens ended"),
        Finish::Stop | Finish::Cancelled => {}
    }
}
