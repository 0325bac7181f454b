//! Training from code: samples in memory, an adapter in memory, no recipe file and no output folder.
//!
//! [`Recipe::new`] has every default, to be changed field by field. What a run of the program does beyond this, it does with
//! the same parts: [`crate::run`] plans, [`crate::train::trainer`] takes the steps, [`crate::verify`] exports.

use crate::adapter::lora::Adapter;
use crate::data::batch::Sample;
use crate::data::dataset::{self, DatasetError};
use crate::gpu::{Gpu, GpuError};
use crate::recipe::Recipe;
use crate::run::{self, Frozen, RunError, Steps};
use crate::train::trainer::{StepReport, TrainError, Trainer};

/// Why there is no adapter.
#[derive(Debug, thiserror::Error)]
pub enum FinetuneError {
    /// The samples or the settings.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The device.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// A step.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// No step changed anything.
    #[error("training changed nothing; check learning_rate, and that there are more than the warm-up steps")]
    Unmoved,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// The optimizer step that was taken, from 1.
    pub step: usize,
    /// How many there are.
    pub steps: usize,
    /// Its learning rate.
    pub learning_rate: f64,
    /// Its loss and gradient norm.
    pub report: StepReport,
}

/// Samples from JSON Lines in memory, in the shapes that `datasets/README.md` shows, as `recipe.data` says.
///
/// Fails on what cannot be used, with its line; `name` stands for the text in messages.
pub fn samples(
    frozen: &Frozen,
    recipe: &Recipe,
    text: &str,
    name: &str,
) -> Result<Vec<Sample>, DatasetError> {
    let options = dataset::Options {
        format: recipe.data.format,
        template: &frozen.template,
        train_on: recipe.data.train_on,
        max_seq_len: recipe.data.max_seq_len,
        overlong: recipe.data.overlong,
        invalid: recipe.data.invalid,
    };
    Ok(dataset::parse(text.as_bytes(), name, &frozen.tokenizer, &options)?.samples)
}

/// Trains an adapter as `recipe.lora` and `recipe.train` say, starting anew or from `recipe.lora.init_from`.
///
/// The sections `eval`, `output` and `device` play no part. The same samples, recipe and device give the same bits.
pub async fn finetune(
    gpu: &Gpu,
    frozen: &Frozen,
    samples: &[Sample],
    recipe: &Recipe,
    mut progress: impl FnMut(Progress),
) -> Result<Adapter, FinetuneError> {
    let planned = Steps::plan(recipe, samples)?;
    let steps = planned.plans.len();
    let capacity = run::capacity(&planned, samples, &[]);

    let start = run::initial_adapter(recipe, &frozen.base)?.adapter;
    let positions = recipe.data.max_seq_len;
    let model = run::load(gpu, &frozen.base, recipe, &start, capacity, positions, |_| ()).await?;
    let trainer = Trainer::new(gpu, &model, &start, capacity, run::dropout(recipe), run::recompute(recipe))?;
    let optimizer = run::optimizer(recipe);
    trainer.compile(&run::largest(&planned, samples), &optimizer).await?;
    for index in 0..steps {
        let report = planned.take(&trainer, samples, index, &optimizer).await?;
        let learning_rate = planned.schedule.learning_rate(index);
        progress(Progress { step: index + 1, steps, learning_rate, report });
    }
    let pairs = trainer.adapter().await?;
    if pairs == start.pairs { Err(FinetuneError::Unmoved) } else { Ok(Adapter { pairs, ..start }) }
}
