//! The exact commands that a user can run after a run has stopped, failed, or turned out to be finished.

use anyhow::{Error, anyhow};
use rullama_train::recipe::Recipe;
use rullama_train::run::{self, DriveError, checkpoint};
use rullama_train::train::TrainError;
use serde_json::json;

use super::super::message;
use super::super::output::{self, next};
use super::super::recipe_args::RecipeArgs;
use super::super::setup::session::Session;
use super::console::OutputMode;
use super::resume::Finished;

/// Says that the run of this recipe is over, and how to use, extend or replace it.
pub fn finished_before(invocation: &RecipeArgs, recipe: &Recipe, found: &Finished, mode: OutputMode) {
    let dir = recipe.output.dir.display();
    let Finished { step, steps, refused } = found;
    if mode == OutputMode::Json {
        let event =
            json!({ "event": "already_finished", "step": step, "steps": steps, "output": recipe.output.dir });
        output::text(event);
    }
    if mode != OutputMode::Text {
        return;
    }
    let early = if step < steps { ", where the validation loss no longer improved" } else { "" };
    let kept = if *refused { "; its adapter was refused and is kept in the folder `refused`" } else { "" };
    output::line(
        "finished",
        format_args!("{dir}: this run ended after step {step} of {steps}{early}{kept}; nothing was changed"),
    );
    if !refused {
        output::command("use", &next::chat(&recipe.model.base, &recipe.output.dir));
    }
    let longer = match (step < steps, recipe.train.max_steps) {
        (true, _) => invocation.with("eval.early_stopping_patience", 0),
        (_, Some(most)) => invocation.with("train.max_steps", 2 * most),
        (_, None) => invocation.with("train.epochs", 2 * recipe.train.epochs),
    };
    output::command("extend", &longer.command(&["--continue-with-changes"]));
    output::command("replace", &invocation.command(&["--fresh"]));
}

/// Appends the command that resumes the run, if there is one.
pub fn with_next_step(error: Error, invocation: &RecipeArgs, recipe: &Recipe, session: &Session) -> Error {
    let text = message(&error);
    let saved = checkpoint::list(&recipe.output.dir).first().map(|(step, _)| *step);
    let of_numbers = matches!(
        error.downcast_ref::<DriveError>(),
        Some(DriveError::Train(
            TrainError::NotFinite { .. }
                | TrainError::ValidationNotFinite { .. }
                | TrainError::Diverged { .. }
        ))
    );
    if !of_numbers {
        let Some(step) = saved else { return error };
        let command = invocation.command(&[]);
        return anyhow!("{text}. The run is saved after step {step}; resume with `{command}`");
    }
    // The same step fails again in the same way.
    let rate = run::lower_rate(recipe, &session.frozen.base);
    let lower = invocation.with("train.learning_rate", format!("{rate:e}"));
    let Some(step) = saved else {
        return anyhow!("{text}. Start over with a lower rate: `{}`", lower.command(&["--fresh"]));
    };
    anyhow!(
        "{text}. Resuming as it is would repeat this. Start over with a lower rate, `{}`, or continue with it after step {step}, \
         `{}`",
        lower.command(&["--fresh"]),
        lower.command(&["--continue-with-changes"])
    )
}
