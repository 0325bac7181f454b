//! The summary that `check` and a run print before the first step: device, base, adapter, data and steps.

use anyhow::Result;
use rullama_train::adapter::Loaded;
use rullama_train::adapter::lora::{Adapter, Slot};
use rullama_train::data::dataset::{Notice, What};
use rullama_train::gpu::Gpu;
use rullama_train::recipe::{Recipe, TrainOn};
use rullama_train::run::{PreparedRun, SourceFile, names, ollama, row_limit, wording};

use super::device::Device;
use super::session::Session;
use super::timings::Timings;
use crate::cli::output::{self, count, grouped, line};

/// Files that are listed; further files are only counted.
const LISTED_FILES: usize = 12;

/// Opens base, data and device, and prints them.
pub fn opened(recipe: &Recipe, timings: &mut Timings) -> Result<(Session, Loaded, Device)> {
    let (session, gpu) = Session::start_on_device(recipe);
    let ((mut session, initial), gpu) = (session?, gpu?);
    let limited = session.limit_memory(&gpu, &initial.adapter)?;
    timings.record("base, samples and device");
    start(&session.recipe, &session, &initial, &gpu);
    limited.iter().for_each(|notice| line("memory", notice));
    Ok((session, initial, gpu))
}

/// Prints device, base, adapter, data and steps.
pub fn start(recipe: &Recipe, session: &Session, initial: &Loaded, gpu: &Gpu) {
    output::device(gpu);
    base(session);
    adapter(recipe, &initial.adapter);
    data(recipe, session);
    output::notices(&initial.notices);
    steps(recipe, session);
    output::notices(&session.prepared.advice);
}

fn base(session: &Session) {
    let base = &session.frozen.base;
    let config = base.config();
    let layers = count(config.layers.len(), "layer");
    let vocab = grouped(config.vocab);
    line("base", format_args!("{}: {layers}, width {}, vocabulary {vocab}", base.name(), config.width));
}

fn adapter(recipe: &Recipe, adapter: &Adapter) {
    let slots: Vec<Slot> = adapter.pairs.keys().copied().collect();
    let origin = match &recipe.lora.init_from[..] {
        [] => String::new(),
        paths => format!(", from {}", output::adapters(paths)),
    };
    let parameters = count(adapter.parameters(), "trainable parameter");
    let Adapter { rank, alpha, .. } = adapter;
    let scale = adapter.scale();
    line(
        "adapter",
        format_args!(
            "{parameters}{origin}: rank {rank}, alpha {alpha} (scale {scale:.4}) on {}",
            names(&slots)
        ),
    );
    output::notices(rank_beyond(*rank, &slots).as_slice());
}

/// The warning about a rank that is larger than the smaller side of a matrix, where it adds parameters but no capacity.
fn rank_beyond(rank: usize, slots: &[Slot]) -> Option<String> {
    let side = |slot: &Slot| slot.len_a(1).min(slot.len_b(1));
    // Any rank is too large for a matrix of one row.
    let beyond: Vec<&Slot> = slots.iter().filter(|slot| (2..rank).contains(&side(slot))).collect();
    let least = beyond.iter().map(|slot| side(slot)).min()?;
    Some(format!(
        "lora.rank = {rank} is larger than the smaller side of {} of {} matrices (the smallest is {least}): a rank above that adds \
         memory, but nothing that the adapter could learn",
        beyond.len(),
        slots.len()
    ))
}

fn data(recipe: &Recipe, session: &Session) {
    let data = &session.prepared.data;
    let template = wording::template(&session.frozen.template, &recipe.data.template);
    let loss = match recipe.data.train_on {
        TrainOn::Assistant => "loss on every answer",
        TrainOn::Answers => "loss on every answer without its reasoning",
        TrainOn::LastAssistant => "loss on the last answer",
        TrainOn::All => "loss on all tokens",
    };
    let loss = if recipe.grpo.is_some() { "loss on completions" } else { loss };
    line("template", format_args!("{template}; {loss}"));
    let frozen = &session.frozen;
    let system = recipe.data.system.as_deref();
    if let Some(text) = ollama::rendering(&frozen.base, &frozen.template, &frozen.tokenizer, system) {
        line("", text);
    }
    for (number, source) in data.sources.iter().enumerate() {
        if number == LISTED_FILES && data.sources.len() > LISTED_FILES + 1 {
            let rest = count(data.sources.len() - LISTED_FILES, "file");
            output::text(format_args!("           and {rest}"));
            break;
        }
        line(if number == 0 { "read" } else { "" }, self::source(source));
    }
    let train = output::token_counts(&data.train);
    line("data", format_args!("train {train}; validation {}", output::token_counts(&data.validation)));
    output::notices(&data.notices);
}

fn source(source: &SourceFile) -> String {
    let found = output::found(&source.path, &source.found);
    match source.weight {
        1.0 => found,
        weight => format!("{found}; each {weight} times per epoch"),
    }
}

/// Prints how the samples become steps.
fn steps(recipe: &Recipe, session: &Session) {
    let length = match recipe.train.max_steps {
        Some(_) => "max_steps".into(),
        None => count(recipe.train.epochs, "epoch"),
    };
    let batch = match recipe.data.packing {
        _ if recipe.grpo.is_some() => count(recipe.train.batch_size, "completion"),
        true => format!(
            "{} packed up to {}",
            count(recipe.train.batch_size, "row"),
            count(row_limit(recipe), "token")
        ),
        false => count(recipe.train.batch_size, "sample"),
    };
    let accumulated = match recipe.train.gradient_accumulation_steps {
        1 => String::new(),
        n => format!("{n} micro-batches of "),
    };
    let steps = grouped(session.prepared.steps.plans.len());
    let rate = recipe.train.learning_rate;
    let groups = recipe.grpo.as_ref().map_or(String::new(), |keys| {
        let completions = recipe.train.batch_size * recipe.train.gradient_accumulation_steps;
        let prompts = count(completions / keys.num_generations, "prompt");
        format!(" ({prompts} with {} each)", keys.num_generations)
    });
    line(
        "steps",
        format_args!("{steps} ({length}), each {accumulated}{batch}{groups}; peak learning rate {rate}"),
    );
}

/// Prints lengths, packing and duplicates of the training samples.
pub fn samples(recipe: &Recipe, session: &Session) {
    output::lengths(&session.prepared.data.train);
    packing(recipe, session);
    let repeated = |notice: &Notice| matches!(notice.what, What::Duplicates { .. } | What::Leaked { .. });
    if !session.prepared.data.notices.iter().any(repeated) {
        line("duplicates", "none");
    }
}

fn packing(recipe: &Recipe, session: &Session) {
    if !recipe.data.packing || recipe.grpo.is_some() {
        return;
    }
    let limit = row_limit(recipe);
    let PreparedRun { data, steps, .. } = &session.prepared;
    let lengths = |plan: &[usize]| plan.iter().map(|&i| data.train[i].ids.len()).sum::<usize>();
    let batches: Vec<&Vec<usize>> = steps.plans.iter().flatten().collect();
    let rows = batches.len() * recipe.train.batch_size;
    let tokens: usize = batches.iter().map(|batch| lengths(batch)).sum();
    let samples: usize = batches.iter().map(|batch| batch.len()).sum();
    line(
        "packing",
        format_args!(
            "{:.1} samples per row; rows of {} tokens are {:.1} % full",
            samples as f64 / rows as f64,
            grouped(limit),
            100.0 * tokens as f64 / (rows * limit) as f64
        ),
    );
}
