//! What `export` and `merge` compare their results on, and with which device.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use rullama_train::base::Base;
use rullama_train::data::dataset::{Invalid, Options, Overlong, files};
use rullama_train::data::template::TrainOn;
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::export::HeldOut;
use rullama_train::families;
use rullama_train::gpu::{Backend, Tier};
use rullama_train::model::plan::{self, Offload};
use rullama_train::recipe::{Recipe, Switch, Template};
use rullama_train::run::{self, Data, Frozen};

use super::device::Device;
use super::session::Session;
use super::show;

/// Text to compare on.
#[derive(Args)]
pub struct HeldOutArgs {
    /// Compare logits on this recipe's validation data, on its device; unset, a few built-in questions and answers serve.
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    recipe: Option<PathBuf>,
    /// The same on the samples of a file.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Compare no logits: no device is opened, and nothing is known about what the result computes.
    #[arg(long, conflicts_with_all = ["recipe", "data", "offload_experts"])]
    unverified: bool,
    /// Leave a mixture's experts in host memory while logits are compared: slower, for a GPU that is too small. Unset, a recipe's
    /// train.offload_experts decides, and all stay there where it sets train.memory_limit.
    #[arg(long)]
    offload_experts: bool,
}

/// What a comparison needs.
pub struct Comparison {
    pub gpu: Device,
    pub held_out: HeldOut,
    /// Whether experts stay in host memory.
    pub offload: Offload,
}

impl Comparison {
    /// Shows what compares.
    pub fn show(&self) {
        show::device(&self.gpu);
        if self.offload == Offload::All {
            show::line("offload", "the experts stay in host memory; every pass copies them to the device");
        }
    }
}

impl HeldOutArgs {
    /// What the comparison needs; `None` where none is wanted. Done before any long work, so that mistakes cost no time.
    pub fn open(&self, base: &Base) -> Result<Option<Comparison>> {
        if self.unverified {
            return Ok(None);
        }
        let config = base.config();
        let mixture = !plan::with_experts(base).is_empty();
        if self.offload_experts && !mixture {
            bail!("--offload-experts: {} is no mixture of experts; leave it out", base.name());
        }
        let all = |all: bool| if all { Offload::All } else { Offload::Never };
        if let Some(path) = &self.recipe {
            let recipe = Recipe::read(path, &[("model.base".to_string(), format!("{:?}", base.name()))])?;
            recipe.check_files()?;
            let validation = Data::read(&recipe, &Frozen::open(&recipe)?)?.validation;
            if validation.is_empty() {
                bail!(
                    "{} names no validation data: set data.valid or data.val_size, or use --data",
                    path.display()
                );
            }
            let held_out = HeldOut::of_samples(&validation, config.vocab)?;
            let asked = match recipe.train.offload_experts {
                Switch::On => true,
                Switch::Auto => recipe.train.memory_limit.is_some(),
                Switch::Off => false,
            };
            let offload = all(mixture && (asked || self.offload_experts));
            return Ok(Some(Comparison { gpu: in_f32(Session::device(&recipe)?), held_out, offload }));
        }
        let tokenizer = Tokenizer::from_gguf(base.gguf())?;
        let max_seq_len = config.context_length.min(2048);
        let held_out = match &self.data {
            None => HeldOut::built_in(&tokenizer, families::template(config), max_seq_len, config.vocab),
            Some(path) => {
                let options = Options {
                    format: Default::default(),
                    template: &run::template(&Template::Auto, base)?,
                    train_on: TrainOn::Assistant,
                    max_seq_len,
                    overlong: Overlong::Truncate,
                    invalid: Invalid::Error,
                };
                let samples = files::read(path, &tokenizer, &options, None)?.samples;
                HeldOut::of_samples(&samples, config.vocab)?
            }
        };
        let gpu = in_f32(Device::open(Backend::Auto, None, false)?);
        Ok(Some(Comparison { gpu, held_out, offload: all(self.offload_experts) }))
    }
}

/// A few hundred tokens need no speed, and small differences are to be seen.
fn in_f32(gpu: Device) -> Device {
    gpu.set_tier(Tier::F32);
    gpu
}
