//! The speed of one step, in a bounded time.

use anyhow::Result;
use pollster::block_on;
use rullama_train::base::Base;
use rullama_train::gpu::Gpu;
use rullama_train::model::Model;
use rullama_train::model::plan::{Kept, OnHost, Plan, Recompute};
use rullama_train::train::ranks::Ranks;
use rullama_train::train::{Capacity, Dropout, Trainer};

use super::super::{BenchArgs, OPTIMIZER, random, steps};
use crate::cli::setup::tuning;

/// Seconds from which on a step is not repeated.
const LONG: f64 = 2.5;
/// Bytes of experts in host memory up to which a plan is timed: few computers with such a GPU have more.
const HOST: u64 = 32 << 30;

/// The time of one step.
#[derive(Clone, Copy)]
pub struct Speed {
    /// Tokens per sequence.
    pub tokens: usize,
    /// Tokens of the step.
    step_tokens: usize,
    seconds: f64,
}

impl Speed {
    /// Tokens per second.
    pub fn per_second(&self) -> f64 {
        self.step_tokens as f64 / self.seconds
    }
}

/// The choices of a plan that decide what a step computes.
#[derive(PartialEq)]
struct Work {
    tokens: usize,
    chunk: usize,
    head_rows: usize,
    kept: Vec<Kept>,
    on_host: OnHost,
}

impl Work {
    fn of(plan: &Plan) -> Work {
        Work {
            tokens: plan.tokens,
            chunk: plan.chunk,
            head_rows: plan.head_rows,
            kept: plan.kept.clone(),
            on_host: plan.offloaded.on_host.clone(),
        }
    }
}

/// Times steps of one base. Plans with the same work are timed once.
pub struct Stopwatch<'a> {
    args: &'a BenchArgs,
    gpu: &'a Gpu,
    base: &'a Base,
    last: Option<(Work, Speed)>,
}

impl<'a> Stopwatch<'a> {
    pub fn new(args: &'a BenchArgs, gpu: &'a Gpu, base: &'a Base) -> Stopwatch<'a> {
        Stopwatch { args, gpu, base, last: None }
    }

    /// Times one step of `tokens` tokens per sequence within `limit` bytes: the second, or the first if that is long. `None` where `plan` keeps more
    /// in host memory than usual computers have.
    pub fn speed(&mut self, tokens: usize, limit: u64, plan: &Plan) -> Result<Option<Speed>> {
        if plan.offloaded.bytes > HOST {
            return Ok(None);
        }
        let work = Work::of(plan);
        if let Some((_, speed)) = self.last.as_ref().filter(|(last, _)| *last == work) {
            return Ok(Some(*speed));
        }
        let speed = self.time(tokens, limit, &plan.offloaded.on_host)?;
        self.last = Some((work, speed));
        Ok(Some(speed))
    }

    fn time(&self, tokens: usize, limit: u64, on_host: &OnHost) -> Result<Speed> {
        let BenchArgs { batch, accumulate, loss_share, rank, .. } = *self.args;
        let config = self.base.config();
        let batches = |tokens| random::batches(batch, tokens, loss_share, accumulate, config.vocab);
        let (short, step) = (batches(tokens.min(steps::SHORT))?, batches(tokens)?);
        let adapter = random::adapter(config, &self.args.modules(), rank);
        let mut capacity = Capacity::default();
        capacity.include(&step);
        let model = block_on(Model::offloading(self.gpu, self.base, tokens, on_host, |_| ()))?;
        let recompute = Recompute::Within(limit);
        let make = || Ok(Trainer::new(self.gpu, &model, &adapter, capacity, Dropout::NONE, recompute)?);
        let (tuning, alone, batches) = (self.args.tuning(), Ranks::alone(), &step.micro_batches);
        let trainer = tuning::tuned(self.gpu, &tuning, &alone, batches, &OPTIMIZER, make)?;
        for step in [&short, &step] {
            block_on(trainer.compile(&step.micro_batches, &OPTIMIZER))?;
        }
        steps::warm_up(&trainer, &short, &step)?;
        let first = steps::mean_seconds(&trainer, &step, 1)?;
        let seconds = if first < LONG { steps::mean_seconds(&trainer, &step, 1)? } else { first };
        Ok(Speed { tokens, step_tokens: batch * accumulate * tokens, seconds })
    }
}
