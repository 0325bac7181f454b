//! Timing training steps.

use std::rc::Rc;
use std::time::Instant;

use anyhow::Result;
use pollster::block_on;
use rullama_train::data::batch::Step;
use rullama_train::gpu::profile::KernelTime;
use rullama_train::gpu::{Gpu, Place};
use rullama_train::model::Model;
use rullama_train::run::{self, identity::sha256};
use rullama_train::train::ranks::Ranks;
use rullama_train::train::{Capacity, Dropout, StepReport, Trainer};

use super::peak::Peak;
use super::results::Results;
use super::{BenchArgs, OPTIMIZER, check_sequence, groups, offload, random, work};
use crate::cli::output;
use crate::cli::setup::timings::Timings;
use crate::cli::setup::tuning;

/// Learning rate of the timed steps.
const LEARNING_RATE: f64 = 1e-4;
/// Tokens per sequence of a short step that makes the device ready.
pub const SHORT: usize = 512;

/// Times steps and prints the results.
pub fn run(args: &BenchArgs) -> Result<()> {
    let mut startup = Timings::start();
    let base = random::open_base(&args.base)?;
    check_sequence(&base, args.sequence)?;
    let of = |sequence| random::step(args, sequence, args.accumulate, base.config().vocab);
    let step = of(args.sequence)?;
    let before = of(if args.once { args.sequence.min(SHORT) } else { args.sequence })?;
    startup.record("base");
    let gpu = args.open_gpu(Place::ALONE)?;
    startup.record("device");
    let adapter = random::adapter(base.config(), &args.modules(), args.rank);
    let mut capacity = Capacity::default();
    capacity.include(&step);
    let on_host = offload::on_host(args, &gpu, &base, &adapter, capacity)?;
    let bar = output::spinner("loading the weights");
    let model = block_on(Model::offloading(&gpu, &base, args.sequence, &on_host, |_| ()))?;
    let alone = Rc::new(Ranks::alone());
    let shares = args.shares(&alone)?;
    let make = || {
        let trainer = Trainer::new(&gpu, &model, &adapter, capacity, Dropout::NONE, args.recompute())?;
        let mut trainer = trainer.with_objective(run::objective_of(&args.objective()));
        trainer.share(&alone, shares)?;
        Ok(trainer)
    };
    let trainer = tuning::tuned(&gpu, &args.tuning(), &alone, &step.micro_batches, &OPTIMIZER, make)?;
    startup.record("weights");
    bar.set_message("compiling kernels");
    let mut compiled = block_on(trainer.compile(&step.micro_batches, &OPTIMIZER))?;
    if args.once {
        compiled += block_on(trainer.compile(&before.micro_batches, &OPTIMIZER))?;
    }
    startup.record(output::count(compiled, "kernel"));
    bar.set_message("first step, which is not timed");
    let first = warm_up(&trainer, &before, &step)?;
    startup.record("first step");
    bar.set_message("timing steps");
    let (seconds, digest, kernels) = timed(args, &gpu, &trainer, &step)?;

    bar.finish_and_clear();
    let plan = trainer.plan();
    let operations = work::product_operations(&base, plan, &step);
    let attention =
        work::attention_operations(base.config(), plan, args.accumulate * args.batch, args.sequence);
    let results = Results {
        args,
        gpu: &gpu,
        base: base.name(),
        active_parameters: work::active_parameters(&base),
        startup,
        first,
        digest,
        seconds,
        plan,
        copy_seconds: offload::copy_seconds(&gpu, &model, &plan.offloaded)?,
        product_operations: operations,
        groups: groups::groups(&kernels, operations, attention),
        kernels,
        peak: Peak::measure(&gpu)?,
    };
    results.show();
    Ok(())
}

/// Time per kernel, longest first.
type Kernels = Vec<(String, KernelTime)>;

/// Seconds of a step, the adapter's digest after the timed steps, and the time of each kernel in one more step, which is the timed one
/// with `--once`.
fn timed(args: &BenchArgs, gpu: &Gpu, trainer: &Trainer, step: &Step) -> Result<(f64, String, Kernels)> {
    if args.once {
        let (kernels, seconds) = profile(gpu, trainer, step, 0)?;
        return Ok((seconds, digest(trainer)?, kernels));
    }
    let seconds = mean_seconds(trainer, step, args.steps)?;
    let digest = digest(trainer)?;
    Ok((seconds, digest, profile(gpu, trainer, step, args.steps)?.0))
}

/// The SHA-256 of the adapter's values, which are the same on any number of GPUs.
pub fn digest(trainer: &Trainer) -> Result<String> {
    let pairs = block_on(trainer.adapter())?;
    let values = pairs.values().flat_map(|pair| pair.a.iter().chain(&pair.b));
    let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
    Ok(sha256(&bytes))
}

/// Takes the first step, which is not timed. Meanwhile the timed one is uploaded, as a run uploads every following step.
pub fn warm_up(trainer: &Trainer, step: &Step, timed: &Step) -> Result<StepReport> {
    trainer.announce(timed, false);
    Ok(block_on(trainer.step(step, 1, &OPTIMIZER, LEARNING_RATE))?)
}

/// Mean time of `steps` further steps, in seconds.
pub fn mean_seconds(trainer: &Trainer, step: &Step, steps: usize) -> Result<f64> {
    let started = Instant::now();
    for number in 0..steps {
        // Nothing is left behind the last one.
        if number + 1 < steps {
            trainer.announce(step, true);
        }
        block_on(trainer.step(step, number as u64 + 2, &OPTIMIZER, LEARNING_RATE))?;
    }
    Ok(started.elapsed().as_secs_f64() / steps as f64)
}

/// Time per kernel in one more step, and the time of that step. Without timestamps there are no kernels, and the step runs only if none
/// was timed before.
fn profile(gpu: &Gpu, trainer: &Trainer, step: &Step, steps: usize) -> Result<(Kernels, f64)> {
    if !gpu.can_profile() {
        return Ok((Vec::new(), if steps == 0 { mean_seconds(trainer, step, 1)? } else { 0.0 }));
    }
    gpu.start_profile();
    let started = Instant::now();
    block_on(trainer.step(step, steps as u64 + 2, &OPTIMIZER, LEARNING_RATE))?;
    let seconds = started.elapsed().as_secs_f64();
    let mut kernels: Vec<_> = block_on(gpu.finish_profile())?.into_iter().collect();
    kernels.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    Ok((kernels, seconds))
}
