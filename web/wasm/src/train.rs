//! The main job: a recipe becomes an adapter. The same steps, evaluations and checkpoints as the program's own
//! (`src/cli/train`), which prints where this one tells.

mod course;
mod opened;

use rullama_train::recipe::Recipe;

use crate::control::Control;
use crate::engine::Stage;
use crate::types::{Check, Event, FileEntry, Problem};
use course::Course;
use opened::Opened;

/// Everything up to the first step.
pub async fn check(stage: &Stage<'_>, recipe: &Recipe, files: Vec<FileEntry>) -> Result<Check, Problem> {
    let opened = Opened::read(stage, recipe, files)?;
    let trainer = opened.trainer(stage, recipe)?;
    opened.prepared.try_longest(&trainer).await?;
    Ok(opened.check(stage, recipe, trainer.plan()))
}

/// Trains, evaluates on the way, and tells the adapter; goes on from `checkpoint` where it holds something.
pub async fn train(
    stage: &Stage<'_>,
    recipe: &Recipe,
    files: Vec<FileEntry>,
    checkpoint: Vec<FileEntry>,
    control: &Control,
    hear: &dyn Fn(&Event),
) -> Result<(), Problem> {
    let opened = Opened::read(stage, recipe, files)?;
    let checkpoint = opened.resume(stage, recipe, checkpoint)?;
    let trainer = opened.trainer(stage, recipe)?;
    opened.prepared.try_longest(&trainer).await?;
    let resumed_at = checkpoint.as_ref().map_or(0, |c| c.step);
    hear(&Event::Plan { resumed_at, check: opened.check(stage, recipe, trainer.plan()) });
    Course::begin(stage, recipe, &opened, trainer, checkpoint, control, hear)?.run().await
}
