//! The text and the device with which `export` and `merge` compare their results.

use rullama_train::families;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use rullama_train::base::Base;
use rullama_train::data::dataset::{Options, Overlong, files};
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::gpu::{GpuOptions, KernelSetting};
use rullama_train::model::plan::{self, Offload, Share};
use rullama_train::recipe::{Recipe, Switch, Template};
use rullama_train::run::{self, Data, OpenBase};
use rullama_train::verify::HeldOut;

use super::device::Device;
use super::layers_to_offload;
use super::session::Session;
use crate::cli::output;

/// Options for the comparison of logits.
#[derive(Args, Default)]
pub struct ComparisonArgs {
    /// Compare logits on this recipe's validation data, on its device [default: a few built-in questions and answers].
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    recipe: Option<PathBuf>,
    /// Compare logits on the samples in this file.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Do not compare logits. No GPU is needed, but the quality of the result is unknown.
    #[arg(long, conflicts_with_all = ["recipe", "data", "offload_experts", "offload_layers"])]
    unverified: bool,
    /// Keep a mixture's experts in host memory during the comparison: slower, for a GPU with too little memory. If unset, a
    /// recipe's train.offload_experts decides; if that is "auto", experts stay in host memory if train.memory_limit is set.
    #[arg(long)]
    offload_experts: bool,
    /// Keep the matrices of all layers in host memory during the comparison, likewise. If unset, train.offload_layers decides.
    #[arg(long)]
    offload_layers: bool,
}

/// Describes the text of a comparison without data.
pub const BUILT_IN: &str = "8 built-in questions, not your data";

/// The device and the samples of a comparison.
pub struct Comparison {
    pub gpu: Device,
    pub held_out: HeldOut,
    /// Describes the samples.
    pub text: String,
    /// Matrices that stay in host memory.
    pub offload: Offload,
}

impl Comparison {
    /// Prints the device.
    pub fn show(&self) {
        output::device(&self.gpu);
        let what = match (self.offload.experts, self.offload.layers) {
            (Share::All, Share::Never) => "experts stay",
            (Share::All, _) => "experts and layers stay",
            (_, Share::Never) => return,
            _ => "layers stay",
        };
        output::line(
            "offload",
            format_args!("{what} in host memory and are copied to the GPU in every pass"),
        );
    }
}

impl ComparisonArgs {
    /// The comparison on built-in questions and answers, with the experts where a run has them.
    pub fn of_recipe(recipe: &Recipe) -> ComparisonArgs {
        let offload_experts = recipe.train.offload_experts == Switch::On;
        let offload_layers = matches!(recipe.train.offload_layers, Share::All | Share::Layers(1..));
        ComparisonArgs { offload_experts, offload_layers, ..ComparisonArgs::default() }
    }

    /// Reads the samples and opens the device; `None` with `--unverified`. Call it before long work, so that mistakes show early.
    pub fn open(&self, base: &Base) -> Result<Option<Comparison>> {
        if self.unverified {
            return Ok(None);
        }
        if self.offload_experts {
            layers_to_offload(base)?;
        }
        match &self.recipe {
            Some(path) => self.open_with_recipe(path, base).map(Some),
            None => self.open_without_recipe(base).map(Some),
        }
    }

    fn open_with_recipe(&self, path: &Path, base: &Base) -> Result<Comparison> {
        let recipe = Recipe::read(path, &[("model.base".to_string(), format!("{:?}", base.name()))])?;
        recipe.check_files()?;
        let frozen = OpenBase::open(&recipe)?;
        let (recipe, data) = run::fitted(&recipe, &frozen, |recipe| Data::read(recipe, &frozen))?;
        let validation = data.validation;
        if validation.is_empty() {
            bail!(
                "{} has no validation data: set data.valid or data.val_size, or use --data",
                path.display()
            );
        }
        let held_out = HeldOut::of_samples(&validation, base.config().vocab)?;
        let is_limited = recipe.train.memory_limit.is_some();
        let experts = match recipe.train.offload_experts {
            Switch::On => true,
            Switch::Auto => is_limited,
            Switch::Off => false,
        };
        let layers = match recipe.train.offload_layers {
            Share::All | Share::Layers(1..) => true,
            Share::Auto => is_limited,
            Share::Never | Share::Layers(0) => false,
        };
        let mixture = !plan::with_experts(base).is_empty();
        let offload = all_of(mixture && (experts || self.offload_experts), layers || self.offload_layers);
        let gpu = Session::open_device(&recipe, KernelSetting::F32)?;
        let text = format!("validation samples of {}", path.display());
        Ok(Comparison { gpu, held_out, text, offload })
    }

    fn open_without_recipe(&self, base: &Base) -> Result<Comparison> {
        let config = base.config();
        let tokenizer = Tokenizer::from_gguf(base.gguf())?;
        let max_seq_len = config.context_length.min(2048);
        let held_out = match &self.data {
            None => {
                let template = run::template(&Template::Auto, base)?;
                let templates = (&template, families::template(config));
                HeldOut::built_in(&tokenizer, templates, max_seq_len, config.vocab)
            }
            Some(path) => {
                let template = run::template(&Template::Auto, base)?;
                let options =
                    Options { max_seq_len, overlong: Overlong::Truncate, ..Options::new(&template) };
                let samples = files::read(path, &tokenizer, &options, None)?.samples;
                HeldOut::of_samples(&samples, config.vocab)?
            }
        };
        // A few hundred tokens need no speed, and small differences must be visible.
        let gpu = Device::open(GpuOptions::default(), KernelSetting::F32)?;
        let text = self.data.as_ref().map_or(BUILT_IN.into(), |path| path.display().to_string());
        Ok(Comparison { gpu, held_out, text, offload: all_of(self.offload_experts, self.offload_layers) })
    }
}

/// All experts and all layers, where these are wanted.
fn all_of(experts: bool, layers: bool) -> Offload {
    let share = |all: bool| if all { Share::All } else { Share::Never };
    Offload { experts: share(experts), layers: share(layers), ..Offload::NEVER }
}
