//! The summary at the end of a run.

use rullama_train::adapter::{self, Format};
use rullama_train::recipe::{Metric, Recipe};
use rullama_train::run::metrics::History;
use rullama_train::run::{self, Finished, Run};
use rullama_train::talk::ending::Ending;
use rullama_train::verify::{self, Written};
use serde_json::{Value, json};

use super::super::output;
use super::super::recipe_args::RecipeArgs;
use super::console::Console;

/// Prints that the run was interrupted, and how to resume it.
pub fn interrupted(run: &Run, console: &Console, invocation: &RecipeArgs) {
    let (step, steps, dir) = (run.step, run.steps(), &run.recipe.output.dir);
    // The checkpoint of this step is older than the changes.
    let changed_here = run.changed.last().is_some_and(|changed| changed.step == step);
    let resume = invocation.command(if changed_here { &["--continue-with-changes"] } else { &[] });
    console.json(|| json!({ "event": "stopped", "step": step, "output": dir, "resume": resume }));
    if !console.is_text() {
        return;
    }
    match step {
        0 => output::line(
            "stopped",
            format_args!("before the first step; there was nothing to save ({})", dir.display()),
        ),
        _ => {
            output::line("stopped", format_args!("after step {step} of {steps}; saved in {}", dir.display()));
            output::command("resume", &resume);
        }
    }
}

/// Prints that the teacher's pass was interrupted, and how to go on.
pub fn interrupted_teacher(recipe: &Recipe, console: &Console, invocation: &RecipeArgs) {
    let (dir, resume) = (&recipe.output.dir, invocation.command(&[]));
    console.json(|| json!({ "event": "stopped", "step": 0, "output": dir, "resume": resume }));
    if console.is_text() {
        let text =
            format_args!("before the first step; what the teacher has said is kept ({})", dir.display());
        output::line("stopped", text);
        output::command("resume", &resume);
    }
}

/// Prints the results of a finished run. `effects_seconds`: how long measuring its effects took.
pub fn finished(run: &Run, finished: &Finished, effects_seconds: Option<f64>, console: &Console) {
    console.json(|| as_json(run, finished));
    if !console.is_text() {
        return;
    }
    let history = &run.history;
    let kept = finished.adapter_of_step;
    let (seconds, speed) = history.speed();
    output::text("");
    let steps = output::count(run.step, "step");
    output::line("trained", format_args!("{steps} in {seconds:.1} s, {speed:.0} tokens/s"));
    if finished.early {
        let patience = output::count(run.recipe.eval.early_stopping_patience, "evaluation");
        let (step, steps) = (run.step, run.steps());
        let measure = run.recipe.eval.best_metric.metric().map_or("the validation loss", Metric::title);
        output::line(
            "early",
            format_args!("stopped after step {step} of {steps}: {measure} did not improve in {patience}"),
        );
    }
    if kept != run.step {
        output::line("best", format_args!("exporting the adapter of step {kept} (best evaluation)"));
    }
    let scores = |step: usize| history.evaluation(step).and_then(|e| e.scores);
    if let (Some(before), Some(after)) = (scores(0), scores(kept)) {
        let loss = format!("loss {:.4} → {:.4}", before.eval_loss, after.eval_loss);
        let perplexity = format!("perplexity {:.2} → {:.2}", before.eval_perplexity, after.eval_perplexity);
        let (from, to) = (100.0 * before.eval_accuracy, 100.0 * after.eval_accuracy);
        output::line("validation", format_args!("{loss}, {perplexity}, accuracy {from:.1} % → {to:.1} %"));
    }
    let distances = [0, kept].map(|step| history.evaluation(step).map(|e| &e.preference));
    if let [Some(before), Some(after)] = distances
        && let Some(change) = output::lessons::change(&[before, after])
    {
        output::line("teacher", change);
    }
    if let (Some(before), Some(after)) = (history.evaluation(0), history.evaluation(kept))
        && !after.metrics.is_empty()
    {
        let change = |(metric, after): (&Metric, &f64)| {
            let before =
                before.metrics.get(metric).map_or(String::new(), |before| metric.text(*before) + " → ");
            format!("{} {before}{}", metric.title(), metric.text(*after))
        };
        let changes = after.metrics.iter().map(change).collect::<Vec<_>>().join(", ");
        let answers = output::count(after.metric_samples, "generated answer");
        output::line("answers", format_args!("{changes} over {answers}"));
    }
    if let Some(effects) = history.effects() {
        output::effects(effects, effects_seconds);
    }
    let written = run::verdict(history, kept);
    written.iter().enumerate().for_each(|(i, text)| output::line(if i == 0 { "verdict" } else { "" }, text));
    replies(history, kept, run.recipe.eval.max_new_tokens);
    output::text("");
}

/// Prints the replies before and after training, then those to general questions.
fn replies(history: &History, kept: usize, limit: usize) {
    let of = |step: usize| history.evaluation(step).map_or(&[][..], |e| &e.replies);
    let text = |reply: &str, ending: Option<Ending>| match ending {
        Some(Ending::Limit) => format!("{reply} [cut off at {limit} tokens]"),
        Some(ending) => format!("{reply} [{}]", ending.text()),
        None => reply.to_owned(),
    };
    for (before, after) in of(0).iter().zip(of(kept)) {
        let (old, new) = (text(&before.reply, before.ending), text(&after.reply, after.ending));
        output::text(format_args!("\n  {}\n    before  {old}\n    after   {new}", before.prompt));
    }
    let general = history.effects().map_or(&[][..], |effects| &effects.replies);
    for reply in general {
        let cut = |text: &str, ending: Option<Ending>| match ending {
            Some(Ending::Limit) => format!("{text} …"),
            Some(ending) => format!("{text} [{}]", ending.text()),
            None => text.to_owned(),
        };
        let (old, new) = (cut(&reply.base, reply.base_ending), cut(&reply.reply, reply.ending));
        output::text(format_args!("\n  {} (general)\n    base    {old}\n    after   {new}", reply.prompt));
    }
}

fn as_json(run: &Run, finished: &Finished) -> Value {
    let (seconds, speed) = run.history.speed();
    let kept = finished.adapter_of_step;
    let eval_loss = |step: usize| Some(run.history.evaluation(step)?.scores?.eval_loss);
    let metrics = |step: usize| run.history.evaluation(step).map(|e| &e.metrics);
    let written = finished.written.as_ref();
    json!({
        "event": "finished", "step": run.step, "adapter_of_step": kept, "stopped_early": finished.early,
        "seconds": seconds, "tokens_per_second": speed, "output": run.recipe.output.dir,
        "eval_loss_before": eval_loss(0), "eval_loss": eval_loss(kept),
        "metrics_before": metrics(0), "metrics": metrics(kept),
        "effect": written.map(|w| output::effect_json(&w.effect)), "effects": run.history.effects(),
        "verdict": run::verdict(&run.history, kept), "exported": written.map(exported),
    })
}

/// The result for each format.
fn exported(written: &Written) -> Value {
    let of = |(format, result): &(Format, Result<verify::Exported, adapter::Error>)| match result {
        Ok(found) => json!({
            "format": format.name(), "place": found.place, "read_back": found.fidelity.to_string(),
        }),
        Err(error) => json!({ "format": format.name(), "error": error.to_string() }),
    };
    written.formats.iter().map(of).collect()
}
