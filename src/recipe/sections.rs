//! Reading all sections, and those of a few keys.
//!
//! A key is declared in the file of its section: a field, and the line that reads it with type, range and default. `recipes/chat.toml` describes
//! it; the schema and the pages take that text.

use serde::{Serialize, Serializer};

use super::error::RecipeError;
use super::fields::Section;
use super::source::{Seen, Source};
use super::{Data, Eval, Lora, Output, Recipe, Syntax, Train};
use super::{distill, grpo, objective, rewards};
use crate::base::Fingerprint;
use crate::families;
use crate::gpu::{Backend, GpuOptions, KernelSetting};

/// Reads every section.
pub(super) fn all(source: &Source) -> Result<Recipe, RecipeError> {
    let harmless = |name| source.section(name).harmless();
    let data = Data::read(&source.section("data"))?;
    let train = Train::read(&source.section("train"))?;
    objective::check(&source.section("data"), &data, train.objective.name)?;
    let distill = distill::read(&source.section("distill"), train.objective.name)?;
    let grpo = grpo::read(&source.section("grpo"), train.objective.name)?;
    if let Some(keys) = &grpo {
        let rows = [train.batch_size, train.gradient_accumulation_steps];
        grpo::check(source, keys, &data, rows)?;
    }
    let validates = data.val_size > 0.0 || !data.valid.is_empty();
    Ok(Recipe {
        model: Model::read(&harmless("model"))?,
        lora: Lora::read(&source.section("lora"))?,
        data,
        train,
        distill,
        rewards: rewards::read(source)?,
        grpo,
        eval: Eval::read(&harmless("eval"), validates)?,
        output: Output::read(&harmless("output"))?,
        log: Log::read(&harmless("log"))?,
        device: Device::read(&harmless("device"))?,
    })
}

/// A recipe for which every key is looked up.
const COMPLETE: &str = "model.base = 'tiny'\ntrain.memory_limit = 1.0\noutput.dir = '-'\n[[data.sources]]\npath = '-'\n[[rewards]]\nname = 'number'";

/// Every key, as the code that reads it notes it.
pub(super) fn noted() -> Vec<Seen> {
    let source = Source::parse::<&str>(COMPLETE, Syntax::Toml, "schema", &[]).expect("it is valid");
    all(&source).expect("all required keys are set");
    source.seen.take()
}

/// `[model]`: the base model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Model {
    /// `tiny` (the model in `models/`), the path of a `.gguf` file, a name that `rullama-train models` lists, or one of the Hub.
    pub base: String,
    /// Fingerprint that the base must have. The resolved recipe of a run contains the fingerprint of its base.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text")]
    pub fingerprint: Option<Fingerprint>,
}

fn as_text<S: Serializer>(text: &Option<impl ToString>, serializer: S) -> Result<S::Ok, S::Error> {
    text.as_ref().map(ToString::to_string).serialize(serializer)
}

impl Model {
    pub(super) fn read(section: &Section) -> Result<Model, RecipeError> {
        let example = families::ALL[0].example;
        let expected = format!(
            "\"tiny\", a name that `rullama-train models` lists such as \"{example}\", hf:ORG/REPO:TYPE, or the path of a .gguf file"
        );
        Ok(Model {
            base: section.text("base")?.ok_or_else(|| section.missing("base", &expected))?,
            fingerprint: section.parsed("fingerprint")?,
        })
    }
}

/// `[log]`: where measurements go besides the files of the run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Log {
    /// Whether the run writes `metrics.csv`.
    pub csv: bool,
    /// Command for the shell that gets every event as a line of JSON on its stdin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook: Option<String>,
}

impl Log {
    pub(super) fn read(section: &Section) -> Result<Log, RecipeError> {
        Ok(Log { csv: section.boolean("csv", false)?, hook: section.text("hook")? })
    }
}

/// `[device]`: the GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Device {
    /// Graphics API.
    pub backend: Backend,
    /// Part of the GPU's name, in upper or lower case. If unset, a discrete GPU is preferred over an integrated one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Kernels to run.
    pub kernels: KernelSetting,
    /// Whether the fastest way to compute each product is found at the GPU's first use.
    pub tune: bool,
}

impl Device {
    pub(super) fn read(section: &Section) -> Result<Device, RecipeError> {
        Ok(Device {
            backend: section.choice("backend", Backend::Auto)?,
            gpu: section.text("gpu")?,
            kernels: section.choice("kernels", KernelSetting::Auto)?,
            tune: section.boolean("tune", true)?,
        })
    }

    /// Options that open the recipe's device.
    #[must_use]
    pub fn options(&self) -> GpuOptions {
        GpuOptions { backend: self.backend, name: self.gpu.clone(), ..GpuOptions::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::manual;
    use super::noted;

    #[test]
    fn the_manual_has_every_key() {
        let noted: BTreeSet<String> =
            noted().iter().map(|seen| format!("{}.{}", seen.section, seen.key)).collect();
        let described: BTreeSet<String> =
            manual::comments().map(|(path, _)| path.to_owned()).filter(|path| path.contains('.')).collect();
        assert_eq!(noted, described);
    }
}
