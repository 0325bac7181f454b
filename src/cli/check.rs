//! Everything up to the first step, shown.

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use pollster::block_on;
use rullama_train::adapter::formats::peft;
use rullama_train::files;
use rullama_train::recipe::Recipe;
use rullama_train::run;
use rullama_train::train::Trainer;

use super::laps::Laps;
use super::session::Session;
use super::{describe, show};

/// Steps that are timed on a GPU unless the command line says otherwise.
const MEASURED: usize = 3;

/// Shows what the recipe resolves to; with `gradients`, writes loss and gradients of the first step there. `measure`
/// steps are timed.
pub fn run(recipe: &Recipe, gradients: Option<&Path>, measure: Option<usize>) -> Result<()> {
    gradients.map_or(Ok(()), files::check_file)?;
    let mut laps = Laps::start();
    let (session, gpu) = Session::start_on_device(recipe);
    let ((session, initial), gpu) = (session?, gpu?);
    laps.lap("base, samples and device");
    show::start(recipe, &session, &initial, &gpu);
    describe::samples(recipe, &session);
    let model = session.model(recipe, &gpu, &initial.adapter)?;
    let trainer = session.trainer(recipe, &gpu, &model, &initial.adapter)?;
    laps.lap("weights");
    show::plan(trainer.plan(), true);
    show::line("tried", session.dry_pass(recipe, &trainer, &mut laps)?);
    show::line("started", &laps);
    if let Some(cost) = session.offload(&gpu, &model, trainer.plan())? {
        show::line("offload", cost);
    }
    if let Some(load) = session.experts(&trainer)? {
        show::line("experts", load);
    }
    if gradients.is_none() {
        let measure = measure.unwrap_or(if gpu.is_software() { 0 } else { MEASURED });
        time(recipe, &session, &trainer, measure)?;
    }
    let sample = &session.prepared.data.train[0];
    show::text(format_args!("\n{}; what stands between « and » carries loss:\n", sample.origin));
    show::text(show::marked(&session.frozen.tokenizer, sample));

    let Some(path) = gradients else { return Ok(()) };
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
    show::text("");
    let tensors = 2 * pairs.len();
    show::line("gradients", format_args!("{tensors} tensors, loss {loss:.6}, in {}", path.display()));
    Ok(())
}

/// Takes the first steps as training would, and says how long all of them would take. The first is not counted: in it,
/// pipelines are compiled.
fn time(recipe: &Recipe, session: &Session, trainer: &Trainer, measure: usize) -> Result<()> {
    let (steps, samples) = (&session.prepared.steps, &session.prepared.data.train);
    let total = steps.plans.len();
    let measure = measure.min(total.saturating_sub(1));
    if measure == 0 {
        return Ok(());
    }
    let optimizer = run::optimizer(recipe);
    let (mut measured, mut started) = (0, Instant::now());
    for index in 0..=measure {
        block_on(steps.take(trainer, samples, index, &optimizer))?;
        if index == 0 {
            started = Instant::now();
        } else {
            measured += steps.tokens(samples, index);
        }
    }
    let rate = measured as f64 / started.elapsed().as_secs_f64();
    let all: usize = (0..total).map(|index| steps.tokens(samples, index)).sum();
    let (steps, tokens) = (show::count(total, "step"), show::count(all, "token"));
    show::line(
        "time",
        format_args!(
            "about {} for {steps} of {tokens} in all: {rate:.0} tokens/s in {} after the first; evaluation and replies come \
             on top",
            describe::duration(all as f64 / rate),
            show::count(measure, "step")
        ),
    );
    Ok(())
}
