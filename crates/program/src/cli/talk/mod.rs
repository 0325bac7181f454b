//! Replies from a base with or without adapters. `chat`, `generate`, `serve` and `bench --decode` share what is in this file.

mod args;
pub mod chat;
pub mod generate;
mod judged;
mod prompts;
mod several;
pub mod tokens;

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;

use anyhow::{Result, bail};
use pollster::block_on;
use rullama_train::adapter::lora::Adapter;
use rullama_train::adapter::{self, AdapterPath};
use rullama_train::base::Base;
use rullama_train::gpu::{GpuOptions, KernelSetting};
use rullama_train::model::Model;
use rullama_train::model::decode::{Lengths, Workspace, longest_context, sequences_beside};
use rullama_train::model::plan::OnHost;
use rullama_train::recipe::Template;
use rullama_train::run::{OpenBase, RunError, wording};
use rullama_train::talk::generate::{CHUNK, Finish, Generator, Reply};
use rullama_train::talk::{ending, unwritten};

pub use args::{ModelArgs, SamplingArgs};

use super::setup::device::Device;
use super::setup::layers_to_offload;
use crate::cli::{bus_error, output};

/// Default limit of the context, in tokens.
const CONTEXT: usize = 8192;

/// Everything that [`ModelArgs`] names, opened; the weights are not on the device yet.
pub struct Loaded {
    pub frozen: OpenBase,
    /// The sum of all adapters.
    pub adapter: Option<Adapter>,
    /// Paths and weights of the adapters.
    pub adapters: Vec<AdapterPath>,
    /// The value of `--template`; `frozen.template` is the result.
    pub template: Template,
    pub gpu: Device,
    lengths: Lengths,
    /// Layers whose experts stay in host memory.
    on_host: OnHost,
    /// Whether the GPU's largest buffer limits the context to less than the default.
    shortened: bool,
}

impl Loaded {
    /// Opens base, adapters and device.
    pub fn open(args: &ModelArgs) -> Result<Loaded> {
        args.check()?;
        let adapters = args::adapter_paths(&args.adapters)?;
        let template = Template::from_name(&args.template);
        crate::cli::pull::base(&args.base)?;
        let frozen = OpenBase::named(&args.base, &template).map_err(name_template_option)?;
        let base = &frozen.base;
        bus_error::name(base.gguf().file());
        let adapter = match adapters.is_empty() {
            true => None,
            false => {
                let loaded = adapter::load(&adapters, base, None, args.allow_other_base.into())?;
                loaded.notices.iter().for_each(|notice| eprintln!("note: {notice}"));
                Some(loaded.adapter)
            }
        };
        let trained = base.config().context_length;
        if let Some(context) = args.context.filter(|c| !(1..=trained).contains(c)) {
            bail!("--context {context}: expected 1 to {trained}, the context of {}", base.name());
        }
        let experts = if args.offload_experts { layers_to_offload(base)? } else { Vec::new() };
        let layers = if args.offload_layers { (0..base.config().layers.len()).collect() } else { Vec::new() };
        let on_host = OnHost { experts, layers, ..OnHost::default() };
        let options = GpuOptions { backend: args.backend, name: args.gpu.clone(), ..GpuOptions::default() };
        let gpu = Device::open(options, KernelSetting::Auto)?;
        let wanted = args.context.unwrap_or(CONTEXT.min(trained));
        let context = longest_context(&gpu, base.config(), wanted);
        let shortened = context < wanted;
        if shortened && args.context.is_some() {
            bail!(
                "--context {wanted}: a buffer of this GPU holds the keys and values of at most {context} tokens; lower it"
            );
        }
        let lengths = Lengths { context, chunk: CHUNK };
        Ok(Loaded { frozen, adapter, adapters, template, gpu, lengths, on_host, shortened })
    }

    /// Uploads the base, without what stays in host memory.
    pub fn model(&self) -> Result<Model<'_>> {
        let _bar = output::spinner("loading the base");
        let context = self.lengths.context;
        let loading = Model::offloading(&self.gpu, &self.frozen.base, context, &self.on_host, |_| ());
        Ok(block_on(loading)?)
    }

    /// Allocates the buffers that all conversations share.
    pub fn workspace<'a>(&'a self, model: &'a Model<'a>) -> Result<Workspace<'a>> {
        let rank = self.adapter.as_ref().map_or(0, |a| a.rank);
        Ok(Workspace::new(&self.gpu, model, self.lengths, rank)?)
    }

    /// Allocates the buffers of as many replies at once as fit `times` over, at most `wanted`, of at most `context` tokens with their prompts.
    pub fn workspace_for<'a>(
        &'a self,
        model: &'a Model<'a>,
        context: usize,
        [wanted, times]: [usize; 2],
    ) -> Result<Workspace<'a>> {
        let rank = self.adapter.as_ref().map_or(0, |a| a.rank);
        let lengths = Lengths { context: context.min(self.lengths.context), ..self.lengths };
        let count = sequences_beside(&self.gpu, model, lengths, rank, [wanted, times]);
        Ok(block_on(Workspace::for_sequences(&self.gpu, model, lengths, rank, count))?)
    }

    /// Maximum number of tokens of a conversation.
    pub fn context(&self) -> usize {
        self.lengths.context
    }

    /// Prints device, base, adapters and template.
    pub fn show(&self) {
        output::device(&self.gpu);
        let context = output::count(self.context(), "token");
        let limit = if self.shortened { " (limited by the GPU's buffer size)" } else { "" };
        output::line("base", format_args!("{}, context of {context}{limit}", self.frozen.base.name()));
        let layers = self.on_host.of_layers().len();
        if layers > 0 {
            let what = if self.on_host.layers.is_empty() { "experts" } else { "matrices" };
            let layers = output::count(layers, "layer");
            let text = format!(
                "the {what} of {layers} stay in host memory and are copied to the GPU for every token"
            );
            output::line("offload", text);
        }
        for AdapterPath { path, weight } in &self.adapters {
            let weight = if *weight == 1.0 { String::new() } else { format!(" × {weight}") };
            output::line("adapter", format_args!("{}{weight}", path.display()));
        }
        output::line("template", wording::template(&self.frozen.template, &self.template));
    }
}

/// Generators without and with the adapters. Each is created on first use, with its own key-value cache.
pub struct Generators<'a> {
    loaded: &'a Loaded,
    workspace: &'a Workspace<'a>,
    created: [Option<Generator<'a>>; 2],
}

impl<'a> Generators<'a> {
    pub fn new(loaded: &'a Loaded, workspace: &'a Workspace<'a>) -> Generators<'a> {
        Generators { loaded, workspace, created: [None, None] }
    }

    /// Compiles the kernels of the generator with or without the adapters before the first reply.
    pub fn compile(&mut self, with_adapter: bool) -> Result<()> {
        let _bar = output::spinner("compiling kernels");
        self.get(with_adapter)?.decoder().compile()?;
        self.loaded.gpu.keep_pipelines();
        Ok(())
    }

    /// The generator with or without the adapters.
    pub fn get(&mut self, with_adapter: bool) -> Result<&mut Generator<'a>> {
        let place = &mut self.created[usize::from(with_adapter)];
        if place.is_none() {
            let adapter = self.loaded.adapter.as_ref().filter(|_| with_adapter);
            *place = Some(Generator::new(self.workspace, &self.loaded.frozen.tokenizer, adapter)?);
        }
        Ok(place.as_mut().expect("created above"))
    }
}

/// Loads the adapters that `--adapter` names and adds them up. Accepts adapters of any base with matching shapes.
pub fn read_adapters(adapters: &[String], base: &Base) -> Result<Adapter> {
    Ok(adapter::load(&args::adapter_paths(adapters)?, base, None, adapter::OtherBase::Allow)?.adapter)
}

/// Replaces the recipe key `data.template` in an error by the option `--template`.
fn name_template_option(error: RunError) -> anyhow::Error {
    let text = error.to_string();
    match text.contains("data.template") {
        true => anyhow::anyhow!(
            "{}",
            text.replace("data.template = ", "--template ").replace("data.template", "--template")
        ),
        false => error.into(),
    }
}

/// Prints a piece of a reply at once. Breaks if stdout is closed. On a terminal, control characters are replaced, so that a
/// model cannot move the cursor.
pub fn print_piece(piece: &str) -> ControlFlow<()> {
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

/// Prints a note on stderr if the vocabulary cannot write some bytes of a prompt's texts.
pub fn note_unwritten<'a>(loaded: &Loaded, texts: impl IntoIterator<Item = &'a str>) {
    if let Some(notice) = unwritten::notice(&loaded.frozen.tokenizer, texts) {
        eprintln!("note: {notice}");
    }
}

/// Prints a note on stderr if a reply was cut off or repeats itself.
pub fn note_if_cut(reply: &Reply, context: usize) {
    if let Some(period) = ending::period(&reply.ids) {
        let period = output::count(period, "token");
        eprintln!("note: the reply repeats itself: it ends in copies of the same {period}");
    }
    match reply.finish {
        Finish::Length => {
            eprintln!("note: the reply was cut after {} tokens (--max-tokens)", reply.ids.len());
        }
        Finish::Context => eprintln!("note: the reply was cut at the end of the context of {context} tokens"),
        Finish::Stop | Finish::Cancelled => {}
    }
}
