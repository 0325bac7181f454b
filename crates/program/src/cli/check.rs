//! `check`: everything up to the first step, printed.

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use pollster::block_on;
use rullama_train::adapter::formats::peft;
use rullama_train::adapter::lora::Adapter;
use rullama_train::data::batch::{MicroBatch, Sample};
use rullama_train::data::compare;
use rullama_train::files;
use rullama_train::gpu::Gpu;
use rullama_train::recipe::Recipe;
use rullama_train::run::answers::Room;
use rullama_train::run::distill::lessons::Lessons;
use rullama_train::run::distill::{self, Job, pass};
use rullama_train::run::pace::{Pace, Work};
use rullama_train::run::{self, answers};
use rullama_train::train::{TrainError, Trainer};
use rullama_train::words;
use serde_json::{Value, json};

use super::check_rewards;
use super::output;
use super::recipe_args::quoted;
use super::setup::session::Session;
use super::setup::summary;
use super::setup::timings::Timings;

/// Default number of timed steps on a GPU.
const MEASURED: usize = 3;

/// Prints what the recipe of `recipe_file` resolves to. `gradients`: file for the loss and gradients of the first step. `measure`: number of
/// steps to time.
pub fn run(
    recipe: &Recipe,
    recipe_file: &Path,
    gradients: Option<&Path>,
    measure: Option<usize>,
) -> Result<()> {
    if gradients.is_some() && recipe.grpo.is_some() {
        bail!(
            "--gradients: train.objective = \"grpo\" draws its samples during the run, and has none before"
        );
    }
    gradients.map_or(Ok(()), files::check_file)?;
    let mut timings = Timings::start();
    let (session, initial, gpu) = summary::opened(recipe, &mut timings)?;
    let recipe = &session.recipe;
    summary::samples(recipe, &session);
    let train = &session.prepared.data.train;
    let first = compare::units(train).into_iter().next().unwrap_or(0..1);
    let first = &train[first];
    first.iter().for_each(|sample| output::marked_sample(&session.frozen.tokenizer, sample));
    first.first().map_or(Ok(()), |sample| lesson(&session, recipe, &gpu, sample))?;
    if gradients.is_some() {
        session.learn_in_memory(recipe, &gpu)?;
    }
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
        cost(&session, &trainer, &initial.adapter, recipe_file, measure)?;
    }
    if let Some(path) = gradients {
        write_gradients(path, &session, &trainer, &initial.adapter)?;
    }
    finish(&session, &initial.adapter, &trainer, &gpu.description().to_string());
    Ok(())
}

/// Prints how long the run takes, and how to find a rate; for objectives that learn from rewards, a group of completions too.
fn cost(
    session: &Session,
    trainer: &Trainer,
    initial: &Adapter,
    recipe_file: &Path,
    measure: Option<usize>,
) -> Result<()> {
    let is_software = trainer.gpu().is_software();
    if let Some(setup) = &session.prepared.grpo {
        let measure = measure.unwrap_or(if is_software { 0 } else { MEASURED });
        return check_rewards::run(session, setup, trainer, initial, measure);
    }
    match measure {
        None if is_software => output::line(
            "time",
            "not measured with a software renderer; --measure 1 times a step and an evaluation",
        ),
        measure => time(session, trainer, initial, measure.unwrap_or(MEASURED))?,
    }
    let rate = words::rate(session.recipe.train.learning_rate);
    let command = format!("rullama-train check {} --lr", quoted(&recipe_file.to_string_lossy()));
    output::line("rate", format!("{rate} was not tried on these samples; `{command}` proposes a rate"));
    Ok(())
}

/// Prints what the teacher, if there is one, says at the loss tokens of a sample.
fn lesson(session: &Session, recipe: &Recipe, gpu: &Gpu, sample: &Sample) -> Result<()> {
    let Some(teacher) = &session.teacher else { return Ok(()) };
    let job = Job::new(recipe, &session.frozen, teacher, vec![sample], session.prepared.capacity);
    if let Some(taught) = &sample.taught {
        output::text("\nthe teacher reads, with the context:");
        output::marked_sample(&session.frozen.tokenizer, taught);
    }
    let bar = output::spinner("loading the teacher");
    let go_on = |_, _| -> Result<bool, TrainError> { Ok(true) };
    let rows = block_on(pass::in_memory(gpu, recipe, &job, go_on))?;
    bar.finish_and_clear();
    let Some(rows) = rows.filter(|_| job.header.rows > 0) else { return Ok(()) };
    let tokens = Lessons::new(&rows, vec![Some(0)]).of(0, sample)?;
    output::lessons::choices(&session.frozen.tokenizer, teacher.base.name(), sample, &tokens);
    output::notices(&teacher.notices);
    let all = session.prepared.lessons(recipe, &session.frozen, teacher);
    let bytes = output::bytes(all.header.bytes());
    output::line(
        "teacher",
        format_args!("{}: {bytes} in {}", teacher.base.name(), distill::path(recipe).display()),
    );
    Ok(())
}

/// Prints the object of `--json`.
fn finish(session: &Session, initial: &Adapter, trainer: &Trainer, device: &str) {
    let counts = |samples: &[Sample]| {
        let tokens: usize = samples.iter().map(|sample| sample.ids.len()).sum();
        let loss: usize = samples.iter().map(Sample::loss_tokens).sum();
        json!({ "samples": samples.len(), "tokens": tokens, "loss_tokens": loss })
    };
    let data = &session.prepared.data;
    let of_plan = trainer.plan().bytes.iter().filter(|(_, bytes)| *bytes > 0);
    let lines: Vec<Value> = of_plan.map(|(what, bytes)| json!({ "what": what, "bytes": bytes })).collect();
    output::finish(json!({
        "recipe": super::pull::pinned(&session.recipe).pinned(&session.frozen.fingerprint).to_resolved_toml(),
        "base": session.frozen.base.name(), "device": device, "parameters": initial.parameters(),
        "steps": session.prepared.steps.plans.len(), "train": counts(&data.train), "validation": counts(&data.validation),
        "plan": { "lines": lines, "bytes": trainer.plan().total() },
        "notices": data.notices.iter().map(ToString::to_string).chain(session.prepared.advice.clone()).collect::<Vec<_>>(),
    }));
}

/// Writes loss and gradients of the first step.
fn write_gradients(path: &Path, session: &Session, trainer: &Trainer, initial: &Adapter) -> Result<()> {
    if session.prepared.needs_reference() {
        block_on(session.prepared.compute_reference(trainer, Vec::new(), |_, _, _| anyhow::Ok(true)))?;
    }
    let step = session.prepared.steps.taught(&session.prepared.data.train, 0)?;
    let (loss, pairs) = block_on(trainer.gradients(&step, 1))?;
    let metadata = HashMap::from([
        ("loss".to_string(), format!("{loss:?}")),
        ("loss_tokens".to_string(), step.loss_tokens.to_string()),
    ]);
    let naming = peft::Naming::causal_lm(trainer.config());
    let bytes = peft::serialize_pairs(&pairs, initial.rank, naming, metadata)?;
    files::write_atomic(path, &bytes)?;
    let tensors = 2 * pairs.len();
    output::line(
        "gradients",
        format_args!("{tensors} tensors, loss {loss:.6}, written to {}", path.display()),
    );
    Ok(())
}

/// Times the first steps, an evaluation and a reply, and prints an estimate for all. The very first step is a warm-up, in which pipelines are
/// compiled.
fn time(session: &Session, trainer: &Trainer, initial: &Adapter, measure: usize) -> Result<()> {
    let recipe = &session.recipe;
    let steps = &session.prepared.steps;
    let samples = &session.prepared.data.train;
    let batches = session.prepared.batches();
    let total = steps.plans.len();
    let wanted = measure;
    let measure = wanted.min(total.saturating_sub(1));
    if measure == 0 {
        if wanted > 0 {
            output::line("time", "not measured: the run has one step, and the first one is a warm-up");
        }
        return Ok(());
    }
    let optimizer = run::optimizer(recipe);
    let mut measured = 0;
    let mut started = Instant::now();
    let bar = output::Progress::new("timing", measure + 1);
    for index in 0..=measure {
        bar.set_position(index);
        let (step, rate) = (steps.step(samples, index), steps.schedule.learning_rate(index));
        block_on(run::take(
            &batches,
            trainer,
            (index, &step),
            &optimizer,
            rate,
            (1..measure).contains(&index),
        ))?;
        if index == 0 {
            started = Instant::now();
        } else {
            measured += steps.tokens(samples, index);
        }
    }
    let rate = measured as f64 / started.elapsed().as_secs_f64();
    bar.set_message("timing an evaluation");
    let evaluation = evaluation_seconds(session, trainer, initial)?;
    bar.finish_and_clear();
    let Work { tokens: all, evaluations, .. } =
        Work::of(&session.prepared, recipe.eval.steps, recipe.eval.max_new_tokens);
    let pace = Pace {
        steps: (total, all as f64 / rate),
        evaluations: (evaluations, Some(evaluations as f64 * evaluation)),
        replies: session.prepared.replies() > 0,
    };
    output::line(
        "time",
        format_args!(
            "{pace}; {} in total, {rate:.0} tokens/s (measured over {} after a warm-up step)",
            output::count(all, "token"),
            output::count(measure, "step")
        ),
    );
    Ok(())
}

/// Tokens of the reply that is timed.
const TIMED: usize = 8;

/// How long an evaluation takes: a batch of validation samples and some tokens of a reply, timed after a first try, stand for all.
fn evaluation_seconds(session: &Session, trainer: &Trainer, initial: &Adapter) -> Result<f64> {
    let prepared = &session.prepared;
    let mut seconds = 0.0;
    let batches = || prepared.validation.iter().flat_map(|file| &file.batches);
    if let Some(batch) = batches().next() {
        block_on(trainer.validate(batch))?;
        let started = Instant::now();
        block_on(trainer.validate(batch))?;
        let tokens: usize = batches().map(MicroBatch::len).sum();
        seconds += started.elapsed().as_secs_f64() * tokens as f64 / batch.len() as f64;
    }
    let prompts: Vec<&[u32]> = prepared.prompts.iter().map(|(_, ids)| &ids[..]).collect();
    let questions: Vec<&[u32]> = prepared.questions.iter().map(|question| &question.prompt[..]).collect();
    for prompts in [prompts, questions] {
        seconds += replies_seconds(session, trainer, initial, &prompts)?;
    }
    Ok(seconds)
}

/// Seconds that replies to `prompts` take. As many as are generated at once, or one, are timed after a first try, and stand for all.
fn replies_seconds(
    session: &Session,
    trainer: &Trainer,
    initial: &Adapter,
    prompts: &[&[u32]],
) -> Result<f64> {
    if prompts.is_empty() {
        return Ok(0.0);
    }
    let (room, of) = (Room::of(trainer), prompts.len());
    let some = &prompts[..answers::at_once(room, of)];
    let reply = |tokens: usize| {
        let started = Instant::now();
        let go_on = |_| anyhow::Ok(true);
        block_on(answers::generate(room, &session.frozen, initial, (some, of), tokens, go_on))?;
        anyhow::Ok(started.elapsed().as_secs_f64())
    };
    let limit = session.recipe.eval.max_new_tokens;
    reply(1)?;
    let (first, all) = (reply(1)?, reply(limit.min(TIMED))?);
    let each = (all - first).max(0.0) / limit.min(TIMED).saturating_sub(1).max(1) as f64;
    Ok(of as f64 / some.len() as f64 * (first + each * (limit - 1) as f64))
}
