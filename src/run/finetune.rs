//! Training from code: samples in memory, an adapter in memory, no recipe file and no output folder.
//!
//! [`Recipe::new`] returns a recipe with all defaults, whose fields can be changed.

use std::rc::Rc;

use super::metrics::StepMetrics;
use super::{Data, DriveError, Host, OpenBase, Outcome, PreparedRun, Run, RunError, RunEvent};
use crate::adapter::lora::Adapter;
use crate::data::batch::Sample;
use crate::data::dataset::{self, DatasetError};
use crate::gpu::{Gpu, GpuError};
use crate::recipe::Recipe;
use crate::train::Trainer;
use crate::train::ranks::Ranks;

/// An adapter could not be trained.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FinetuneError {
    /// The samples or the settings are invalid.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The device or a step failed.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// The trained adapter equals the initial one.
    #[error(
        "training changed nothing; check train.learning_rate, and that there are more steps than the warm-up has"
    )]
    Unmoved,
}

impl From<GpuError> for FinetuneError {
    fn from(error: GpuError) -> FinetuneError {
        FinetuneError::Drive(error.into())
    }
}

/// The progress of a run after a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Number of the step, from 1.
    pub step: usize,
    /// Steps of the whole run.
    pub steps: usize,
    /// The step's measurements.
    pub metrics: StepMetrics,
}

/// Parses samples from JSON Lines in memory, in the formats that `datasets/README.md` shows, with the settings of
/// `recipe.data`.
///
/// Fails on unusable samples with the line number; `name` stands for the text in messages.
pub fn samples(
    base: &OpenBase,
    recipe: &Recipe,
    text: &str,
    name: &str,
) -> Result<Vec<Sample>, DatasetError> {
    let options = super::plan::data::options(recipe, base);
    Ok(dataset::parse(text.as_bytes(), name, &base.tokenizer, &options)?.samples)
}

/// Trains an adapter with the settings of `recipe.lora` and `recipe.train`, starting from a new one or from
/// `recipe.lora.init_from`. `progress` is called after each step.
///
/// The sections `eval`, `output` and `device` are ignored. The same samples, recipe and device give bit-identical results.
pub async fn finetune(
    gpu: &Gpu,
    base: &OpenBase,
    samples: &[Sample],
    recipe: &Recipe,
    progress: impl FnMut(Progress),
) -> Result<Adapter, FinetuneError> {
    if recipe.distill.is_some() {
        return Err(super::distill::teacher::unsupported().into());
    }
    let recipe = &steps_only(recipe);
    let prepared = PreparedRun::plan(recipe, base, in_memory(samples))?;
    let initial = super::initial_adapter(recipe, &base.base)?.adapter;
    let identity = prepared.identity(base, &initial);

    let (capacity, positions) = (prepared.capacity, prepared.positions);
    let model = super::load(gpu, &base.base, recipe, &initial, capacity, positions, |_| ()).await?;
    let (dropout, recompute) = (super::dropout(recipe), super::recompute(recipe));
    let mut trainer = Trainer::new(gpu, &model, &initial, capacity, dropout, recompute)?
        .with_objective(super::objective(recipe));
    trainer.share(&Rc::new(Ranks::alone()), super::shares(recipe, 1)?).map_err(DriveError::from)?;
    trainer.compile(&prepared.largest(), &super::optimizer(recipe)).await?;

    let run = Run::new(recipe, base, &prepared, &identity, &initial, trainer);
    match run.drive(&mut Silent { progress }).await? {
        Outcome::Finished(finished) => Ok(finished.adapter),
        _ => Err(FinetuneError::Unmoved),
    }
}

/// A host that reports steps and does nothing else.
struct Silent<P> {
    progress: P,
}

impl<P: FnMut(Progress)> Host for Silent<P> {
    type Error = FinetuneError;

    fn on_event(&mut self, run: &Run<'_>, event: RunEvent<'_>) -> Result<(), FinetuneError> {
        if let RunEvent::Step { metrics, .. } = event {
            let metrics = metrics.clone();
            (self.progress)(Progress { step: metrics.step, steps: run.steps(), metrics });
        }
        Ok(())
    }
}

/// `recipe` without evaluations and exports.
fn steps_only(recipe: &Recipe) -> Recipe {
    let mut recipe = recipe.clone();
    recipe.eval.samples = Vec::new();
    recipe.eval.general = false;
    recipe.eval.keep_best = false;
    recipe.eval.early_stopping_patience = 0;
    recipe.output.export = Vec::new();
    recipe
}

fn in_memory(samples: &[Sample]) -> Data {
    Data {
        train: samples.to_vec(),
        weights: vec![1.0; samples.len()],
        validation: Vec::new(),
        validation_counts: Vec::new(),
        sources: Vec::new(),
        notices: Vec::new(),
    }
}
