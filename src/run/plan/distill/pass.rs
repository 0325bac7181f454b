//! The teacher's pass over the samples, with a memory plan of its own.

use std::sync::Arc;

use super::file::Blocks;
use super::format::DIGEST;
use super::job::Job;
use super::lessons::{Bytes, Rows};
use super::teacher::Teacher;
use crate::adapter::lora::{self, Adapter};
use crate::base::Module;
use crate::data::batch::{Capacity, MicroBatch, Sample};
use crate::files;
use crate::gpu::{Gpu, GpuError};
use crate::model::plan::Share;
use crate::recipe::{Recipe, Switch};
use crate::run::{FREE, load, plan, recompute};
use crate::train::{Dropout, TaughtToken, TrainError, Trainer};
use crate::words;

/// Destination of the teacher's rows.
pub enum Sink {
    /// Memory.
    Memory(Vec<u8>),
    /// A file of which a part may be there.
    #[cfg(feature = "native")]
    Part(files::PartFile),
}

impl Sink {
    fn append(&mut self, bytes: &[u8]) -> Result<(), TrainError> {
        match self {
            Sink::Memory(all) => {
                all.extend(bytes);
                Ok(())
            }
            #[cfg(feature = "native")]
            Sink::Part(file) => file.append(bytes).map_err(of_file),
        }
    }
}

/// The error of a file.
pub fn of_file(error: files::Error) -> TrainError {
    TrainError::Teacher(error.to_string())
}

/// Loads the teacher, and lets it read the samples that `blocks` lacks. `progress` gets the number of loss tokens done and of all before
/// each pass and after the last; it returns false to stop, and the result is then false.
pub async fn run<E: From<TrainError>>(
    gpu: &Gpu,
    recipe: &Recipe,
    job: &Job<'_>,
    blocks: &mut Blocks,
    sink: &mut Sink,
    mut progress: impl FnMut(usize, usize) -> Result<bool, E>,
) -> Result<bool, E> {
    let base = &job.teacher.base;
    // A fresh adapter has no effect: its B is zero.
    let none = Adapter::init(&lora::slots(base.config(), &[Module::AttnQ]), 1, 1.0, false, 0);
    let own = &settings(recipe, gpu, job, &none).map_err(TrainError::from)?;
    let (capacity, positions) = (job.capacity, job.capacity.longest);
    let model = load(gpu, base, own, &none, capacity, positions, |_| ()).await.map_err(TrainError::from)?;
    let trainer = Trainer::new(gpu, &model, &none, capacity, Dropout::NONE, recompute(own));
    let trainer = trainer.map_err(|error| too_large(job, error))?;
    check_tokens(job)?;
    let mut rest = rest(job, blocks.rows());
    while !rest.is_empty() {
        if !progress(blocks.rows(), job.header.rows)? {
            return Ok(false);
        }
        let (own, others) = rest.split_at(fitting(rest, capacity));
        rest = others;
        let tokens = teach(&trainer, job, own).await?;
        let block = job.header.block(&tokens, &blocks.digest);
        sink.append(&block)?;
        blocks.add(
            tokens.len(),
            block[block.len() - DIGEST..].try_into().expect("a block ends with its digest"),
        );
    }
    progress(blocks.rows(), job.header.rows)?;
    Ok(true)
}

/// Everything in memory, for a few samples: [`run`] from the first to the last.
pub async fn in_memory<E: From<TrainError>>(
    gpu: &Gpu,
    recipe: &Recipe,
    job: &Job<'_>,
    progress: impl FnMut(usize, usize) -> Result<bool, E>,
) -> Result<Option<Arc<Rows>>, E> {
    let mut blocks = Blocks::none(job.header.clone());
    let mut sink = Sink::Memory(job.header.to_bytes());
    let done = run(gpu, recipe, job, &mut blocks, &mut sink, progress).await?;
    Ok(match sink {
        Sink::Memory(bytes) => done.then(|| Arc::new(Rows::new(blocks, Bytes::Memory(bytes)))),
        #[cfg(feature = "native")]
        Sink::Part(_) => None,
    })
}

async fn teach(
    trainer: &Trainer<'_>,
    job: &Job<'_>,
    samples: &[&Sample],
) -> Result<Vec<TaughtToken>, TrainError> {
    let batch = MicroBatch::pack(samples.iter().copied());
    let kept = (job.header.top, job.teacher.count);
    let tokens = trainer.teach(&batch, kept, job.header.whole, job.temperature).await?;
    let is_sound = |token: &TaughtToken| {
        let mut logs = token.row.tokens.iter().map(|(_, log)| *log).chain(token.row.rest);
        token.row.tokens.len() == job.header.top && token.loss.is_finite() && logs.all(f32::is_finite)
    };
    match tokens.iter().all(is_sound) {
        true => Ok(tokens),
        false => Err(TrainError::Teacher(format!(
            "distill.teacher: the logits of {} are not finite in the pass that begins with the sample of {}; its file is damaged, or a value \
             overflows: try device.kernels = \"f32\"",
            job.teacher.base.name(),
            samples[0].origin
        ))),
    }
}

/// Fails if a sample has a token that the teacher lacks, or is longer than its context.
fn check_tokens(job: &Job) -> Result<(), TrainError> {
    let Teacher { base, count, .. } = job.teacher;
    let longest = base.config().context_length;
    for sample in &job.samples {
        let length = sample.ids.len();
        if length > longest {
            return Err(TrainError::Teacher(format!(
                "distill.teacher: the sample of {} has {length} tokens with its \"context\", if it has one, but {} takes {longest}; shorten \
                 it, or remove it",
                sample.origin,
                base.name()
            )));
        }
        if let Some(id) = sample.ids.iter().find(|id| **id as usize >= *count) {
            return Err(TrainError::Teacher(format!(
                "distill.teacher: the sample of {} has token {id}, which {} lacks; choose a teacher with the base's vocabulary",
                sample.origin,
                base.name()
            )));
        }
    }
    Ok(())
}

/// The recipe's settings for passes of the teacher: it streams from host memory what does not fit.
fn settings(recipe: &Recipe, gpu: &Gpu, job: &Job, adapter: &Adapter) -> Result<Recipe, GpuError> {
    let mut own = recipe.clone();
    own.lora.dropout = 0.0;
    own.train.offload_experts = Switch::Auto;
    own.train.offload_layers = Share::Auto;
    own.train.offload_inputs = Switch::Auto;
    own.train.gradient_checkpointing =
        if recipe.train.memory_limit.is_some() { Switch::Auto } else { Switch::On };
    let Some(memory) = gpu.memory().filter(|_| recipe.train.memory_limit.is_none()) else { return Ok(own) };
    let planned = plan(gpu, &job.teacher.base, &own, adapter, job.capacity, job.capacity.longest)?.total();
    let free = memory.saturating_sub(FREE);
    if planned > free {
        own.train.memory_limit = Some(free as f64 / f64::from(1 << 30));
        own.train.gradient_checkpointing = Switch::Auto;
    }
    Ok(own)
}

fn too_large(job: &Job, error: GpuError) -> TrainError {
    match error {
        GpuError::OverLimit { needed, limit } => {
            let [needed, limit] = [needed, limit].map(words::bytes);
            TrainError::Teacher(format!(
                "distill.teacher: {} needs {needed} for passes of {} tokens, and may take {limit}; lower data.max_seq_len or \
                 train.batch_size, raise train.memory_limit, or choose a smaller teacher",
                job.teacher.base.name(),
                job.capacity.tokens
            ))
        }
        error => error.into(),
    }
}

/// The samples behind those that have `rows` rows.
fn rest<'j, 's>(job: &'j Job<'s>, rows: usize) -> &'j [&'s Sample] {
    let mut before = 0;
    let done = job.samples.iter().take_while(|sample| {
        before += sample.loss_tokens();
        before <= rows
    });
    &job.samples[done.count()..]
}

/// Number of the first samples that fit one pass; at least one, if there are any.
fn fitting(samples: &[&Sample], capacity: Capacity) -> usize {
    let (mut tokens, mut loss_tokens) = (0, 0);
    let full = samples.iter().position(|sample| {
        tokens += sample.ids.len();
        loss_tokens += sample.loss_tokens();
        tokens > capacity.tokens || loss_tokens > capacity.loss_tokens
    });
    full.unwrap_or(samples.len()).max(1).min(samples.len())
}
