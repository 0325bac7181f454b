//! Timing steps that several processes compute together.

use std::rc::Rc;

use anyhow::{Result, bail};
use pollster::block_on;
use rullama_train::data::batch::Step;
use rullama_train::model::Model;
use rullama_train::train::ranks::Ranks;
use rullama_train::train::{Capacity, Dropout, Times, Trainer};
use serde_json::json;

use super::steps::{digest, mean_seconds, warm_up};
use super::{BenchArgs, OPTIMIZER, check_sequence, offload, random};
use crate::cli::output::{self, line};
use crate::cli::ranks::{self, RankFacts};
use crate::cli::setup::tuning;

/// The results, on rank 0.
struct Results<'a> {
    args: &'a BenchArgs,
    all: Vec<RankFacts>,
    /// Seconds of a step of one rank, while all compute such steps without each other; the slowest.
    alone: f64,
    /// Seconds of a step of all ranks.
    together: f64,
    times: Times,
    first_loss: f64,
    /// SHA-256 of the adapter after the steps.
    digest: String,
    gradient_bytes: usize,
}

/// Times steps of each rank alone, then of all ranks together, and prints both.
pub fn run(args: &BenchArgs, ranks: &Rc<Ranks>) -> Result<()> {
    if args.sweep.is_some() || args.decode.is_some() || args.plan || args.fits || args.once {
        bail!(
            "--sweep, --decode, --plan, --fits and --once run in one process; start them without mpirun or srun"
        );
    }
    if !args.objective.is_sft() {
        bail!("--objective {} runs in one process; start it without mpirun or srun", args.objective.name());
    }
    let base = random::open_base(&args.base)?;
    check_sequence(&base, args.sequence)?;
    let whole = random::step(args, args.sequence, args.accumulate * ranks.size(), base.config().vocab)?;
    let own = part(&whole, ranks.rank(), args.accumulate);
    let gpu = args.open_gpu(ranks.local())?;
    let all = RankFacts::own(&gpu, None).gather(ranks)?;
    ranks::check(&all)?;
    let adapter = random::adapter(base.config(), &args.modules(), args.rank);
    let mut capacity = Capacity::default();
    capacity.include(&whole);
    let on_host = offload::on_host(args, &gpu, &base, &adapter, capacity)?;
    let model = block_on(Model::offloading(&gpu, &base, args.sequence, &on_host, |_| ()))?;
    let make = || Ok(Trainer::new(&gpu, &model, &adapter, capacity, Dropout::NONE, args.recompute())?);
    let mut trainer = tuning::tuned(&gpu, &args.tuning(), ranks, &own.micro_batches, &OPTIMIZER, make)?;
    block_on(trainer.compile(&own.micro_batches, &OPTIMIZER))?;

    let start = block_on(trainer.snapshot())?;
    warm_up(&trainer, &own, &own)?;
    ranks.largest(0)?; // all begin at once
    let seconds = mean_seconds(&trainer, &own, args.steps)?;
    let alone = ranks.gather(&seconds.to_le_bytes())?;
    trainer.restore(&start);
    trainer.share(ranks, args.shares(ranks)?)?;
    let first_loss = warm_up(&trainer, &whole, &whole)?.loss;
    let before = trainer.times().unwrap_or_default();
    let together = mean_seconds(&trainer, &whole, args.steps)?;
    let times = since(&before, trainer.times().unwrap_or_default());
    let digest = digest(&trainer)?;
    let number =
        |bytes: &Vec<u8>| bytes.as_chunks::<8>().0.first().map_or(0.0, |bytes| f64::from_le_bytes(*bytes));
    let gradient_bytes = 4 * adapter.parameters();
    let slowest = alone.iter().map(number).fold(0.0, f64::max);
    if ranks.is_first() {
        Results { args, all, alone: slowest, together, times, first_loss, digest, gradient_bytes }.print();
    }
    Ok(())
}

/// The micro-batches of one rank as a step of its own.
fn part(whole: &Step, rank: usize, count: usize) -> Step {
    let micro_batches = whole.micro_batches[rank * count..(rank + 1) * count].to_vec();
    let loss_tokens = micro_batches.iter().map(|batch| batch.targets.len()).sum();
    Step { micro_batches, loss_tokens, ..Step::default() }
}

/// The times of the steps after `before`.
fn since(before: &Times, now: Times) -> Times {
    Times {
        computes: now.computes.iter().zip(&before.computes).map(|(now, before)| now - before).collect(),
        read: now.read - before.read,
        sum: now.sum - before.sum,
        write: now.write - before.write,
        steps: now.steps - before.steps,
    }
}

impl Results<'_> {
    fn print(&self) {
        let BenchArgs { batch, sequence, accumulate, .. } = self.args;
        let of_rank = (batch * sequence * accumulate) as f64;
        let one = of_rank / self.alone;
        let each = of_rank / self.together;
        let all = each * self.all.len() as f64;
        let efficiency = each / one;
        if self.args.json {
            let steps = self.times.steps.max(1) as f64;
            return output::text(json!({
                "ranks": ranks::json(&self.all, Some(&self.times)), "base": self.args.base, "batch": batch, "sequence": sequence,
                "accumulate": accumulate, "rank": self.args.rank, "step_seconds_alone": self.alone, "step_seconds": self.together,
                "tokens_per_second": all, "tokens_per_second_per_gpu": each, "tokens_per_second_alone": one,
                "efficiency": efficiency, "read_seconds": self.times.read / steps, "sum_seconds": self.times.sum / steps,
                "write_seconds": self.times.write / steps, "first_loss": self.first_loss, "adapter_digest": self.digest, "gradient_bytes": self.gradient_bytes,
            }));
        }
        ranks::show(&self.all);
        output::notices(ranks::bound(&self.all).as_slice());
        line("base", &self.args.base);
        line(
            "step",
            format_args!(
                "{} × {accumulate} × {batch} × {sequence} tokens, rank {}: {:.4} s; loss {:.6} in the first",
                self.all.len(),
                self.args.rank,
                self.together,
                self.first_loss
            ),
        );
        line(
            "speed",
            format_args!(
                "{all:.0} tokens/s in all, {each:.0} per GPU; {one:.0} for a GPU on its own, so {:.1} % efficiency",
                100.0 * efficiency
            ),
        );
        line("ranks", ranks::summary(&self.all, &self.times));
        line(
            "gradient",
            format_args!("{} from every GPU in each step", output::bytes(self.gradient_bytes as u64)),
        );
    }
}
