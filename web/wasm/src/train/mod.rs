//! Training in the page: the library's loop, with the page as its host.

mod opened;
mod page;

use rullama_train::gpu::Gpu;
use rullama_train::recipe::Recipe;
use rullama_train::run::{OpenBase, Outcome, Run};
use rullama_train::train::TrainError;

use crate::control::Control;
use crate::engine::Stage;
use crate::events::Event;
use crate::types::{Check, FileEntry, Problem};
pub use opened::{Opened, counts};
use page::Page;

/// Reads the samples and plans steps and memory, without the model: training tries the longest batch before its first step.
pub fn check(gpu: &Gpu, frozen: &OpenBase, recipe: &Recipe, files: Vec<FileEntry>) -> Result<Check, Problem> {
    let opened = Opened::read(frozen, recipe, files)?;
    let plan = opened.plan(gpu, frozen)?;
    Ok(opened.check(frozen, &plan))
}

/// Trains and posts events to the page, the last of them with the adapter. Resumes from `checkpoint` if it has files.
pub async fn train(
    stage: &Stage<'_>,
    opened: &Opened,
    checkpoint: Vec<FileEntry>,
    control: &Control,
    post: &dyn Fn(&Event),
) -> Result<(), Problem> {
    let recipe = &opened.recipe;
    let checkpoint = opened.resume(stage, recipe, checkpoint)?;
    let trainer = opened.trainer(stage, recipe)?;
    opened.prepared.try_longest(&trainer).await?;
    let resumed_at = checkpoint.as_ref().map_or(0, |c| c.step);
    post(&Event::Plan { resumed_at, check: opened.check(stage.frozen, trainer.plan()) });

    let initial = &opened.loaded.adapter;
    let mut run = Run::new(recipe, stage.frozen, &opened.prepared, &opened.identity, initial, trainer);
    if let Some(checkpoint) = checkpoint {
        run.resume(checkpoint).map_err(|e| Problem::new(format!("the checkpoint's {e}")))?;
    }
    let saved = (run.step > 0).then_some(run.step);
    match run.drive(&mut Page::new(control, post, saved)).await? {
        Outcome::Unmoved => Err(TrainError::Unmoved.into()),
        _ => Ok(()),
    }
}
