//! `check`: everything up to the first step, printed.

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use pollster::block_on;
use rullama_train::adapter::formats::peft;
use rullama_train::data::compare;
use rullama_train::files;
use rullama_train::recipe::Recipe;
use rullama_train::run;
use rullama_train::train::Trainer;

use super::output;
use super::setup::session::Session;
use super::setup::summary;
use super::setup::timings::Timings;

/// Default number of timed steps on a GPU.
const MEASURED: usize = 3;

/// Prints what the recipe resolves to. `gradients`: file for the loss and gradients of the first step. `measure`: number of
/// steps to time.
pub fn run(recipe: &Recipe, gradients: Option<&Path>, measure: Option<usize>) -> Result<()> {
    gradients.map_or(Ok(()), files::check_file)?;
    let mut timings = Timings::start();
    let (session, initial, gpu) = summary::opened(recipe, &mut timings)?;
    let recipe = &session.recipe;
    summary::samples(recipe, &session);
    let train = &session.prepared.data.train;
    let first = compare::units(train).into_iter().next().unwrap_or(0..1);
    train[first].iter().for_each(|sample| output::marked_sample(&session.frozen.tokenizer, sample));
    output::text("");
    let bar = output::spinner("loading the base");
    let model = session.model(recipe, &gpu, &initial.adapter)?;
    let trainer = session.trainer(recipe, &gpu, &model, &initial.adapter)?;
    bar.finish_and_clear();
    timings.record("weights");
    output::plan(trainer.plan(), true);
    let bar = output::spinner("trying the longest batch");
    let tried = session.dry_pass(&trainer, &mut timings)?;
    bar.finish_and_clear();
    output::line("dry run", tried.text);
    output::line("startup", &timings);
    if let Some(cost) = session.offload(&gpu, &model, trainer.plan())? {
        output::line("offload", cost);
    }
    if let Some(load) = session.experts(&trainer)? {
        output::line("experts", load);
    }
    if gradients.is_none() {
        let measure = measure.unwrap_or(if gpu.is_software() { 0 } else { MEASURED });
        time(recipe, &session, &trainer, measure)?;
    }
    let Some(path) = gradients else { return Ok(()) };
    if session.prepared.needs_reference() {
        block_on(session.prepared.compute_reference(&trainer, Vec::new(), |_, _, _| anyhow::Ok(true)))?;
    }
    let step = session.prepared.steps.step(&session.prepared.data.train, 0);
    let (loss, pairs) = block_on(trainer.gradients(&step, 1))?;
    let metadata = HashMap::from([
        ("loss".to_string(), format!("{loss:?}")),
        ("loss_tokens".to_string(), step.loss_tokens.to_string()),
    ]);
    let bytes = peft::serialize_pairs(
        &pairs,
        initial.adapter.rank,
        peft::Naming::causal_lm(trainer.config()),
        metadata,
    )?;
    files::write_atomic(path, &bytes)?;
    let tensors = 2 * pairs.len();
    output::line(
        "gradients",
        format_args!("{tensors} tensors, loss {loss:.6}, written to {}", path.display()),
    );
    Ok(())
}

/// Times the first steps and prints an estimate for all. The very first is a warm-up, in which pipelines are compiled.
fn time(recipe: &Recipe, session: &Session, trainer: &Trainer, measure: usize) -> Result<()> {
    let steps = &session.prepared.steps;
    let samples = &session.prepared.data.train;
    let total = steps.plans.len();
    let measure = measure.min(total.saturating_sub(1));
    if measure == 0 {
        return Ok(());
    }
    let optimizer = run::optimizer(recipe);
    let mut measured = 0;
    let mut started = Instant::now();
    let bar = output::Progress::new("timing", measure + 1);
    for index in 0..=measure {
        bar.set_position(index);
        block_on(steps.take(trainer, samples, index, &optimizer))?;
        if index == 0 {
            started = Instant::now();
        } else {
            measured += steps.tokens(samples, index);
        }
    }
    bar.finish_and_clear();
    let rate = measured as f64 / started.elapsed().as_secs_f64();
    let all: usize = (0..total).map(|index| steps.tokens(samples, index)).sum();
    let steps = output::count(total, "step");
    let tokens = output::count(all, "token");
    output::line(
        "time",
        format_args!(
            "about {} for {steps} with {tokens} in total ({rate:.0} tokens/s, measured over {} after a warm-up step), without \
             evaluation and replies",
            estimate(all as f64 / rate),
            output::count(measure, "step")
        ),
    );
    Ok(())
}

/// A rounded duration: `45 s`, `13 min`, `3 h 05 min`.
fn estimate(seconds: f64) -> String {
    match seconds {
        s if s < 60.0 => format!("{s:.0} s"),
        s if s < 3600.0 => format!("{:.0} min", (s / 60.0).ceil()),
        s => format!("{} h {:02} min", (s / 3600.0) as u64, ((s % 3600.0) / 60.0) as u64),
    }
}
