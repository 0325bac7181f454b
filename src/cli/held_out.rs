//! What `export` and `merge` compare their results on, and with which device.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use rullama_train::dataset::{Invalid, Options, Overlong, files};
use rullama_train::export::HeldOut;
use rullama_train::gpu::{Backend, Tier};
use rullama_train::recipe::{Recipe, Template};
use rullama_train::run::{self, Data, Frozen};
use rullama_train::template::{Layout, TrainOn};
use rullama_train::tokenizer::Tokenizer;
use rullama_train::weights::Base;

use super::device::Device;
use super::session::Session;

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
    #[arg(long, conflicts_with_all = ["recipe", "data"])]
    unverified: bool,
}

impl HeldOutArgs {
    /// The text and the device; `None` where none is wanted. Done before any long work, so that mistakes cost no time.
    pub fn open(&self, base: &Base) -> Result<Option<(Device, HeldOut)>> {
        if self.unverified {
            return Ok(None);
        }
        let config = base.config();
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
            return Ok(Some((in_f32(Session::device(&recipe)?), held_out)));
        }
        let tokenizer = Tokenizer::from_gguf(base.gguf())?;
        let max_seq_len = config.context_length.min(2048);
        let held_out = match &self.data {
            None => HeldOut::built_in(&tokenizer, Layout::of(config), max_seq_len, config.vocab),
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
        Ok(Some((in_f32(Device::open(Backend::Auto, None, false)?), held_out)))
    }
}

/// A few hundred tokens need no speed, and small differences are to be seen.
fn in_f32(gpu: Device) -> Device {
    gpu.set_tier(Tier::F32);
    gpu
}
