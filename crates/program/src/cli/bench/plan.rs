//! `bench --plan`: the memory that a training step needs, without running it.

use anyhow::Result;
use rullama_train::base::{Base, Module};
use rullama_train::gpu::{Gpu, Place};
use rullama_train::model::Trainable;
use rullama_train::model::plan::{Offload, Passes, Plan, Recompute};
use rullama_train::train::Capacity;
use serde_json::json;

use super::{BenchArgs, check_sequence, random};
use crate::cli::output;

/// Tokens per row of a plan that names no number.
const USUAL_ROW: usize = 2048;

/// Bytes of GPU memory that training `base` takes at least: rank 16 on every linear layer, one row of 2048 tokens or of the context,
/// every layer recomputed, and as much as possible in host memory.
pub fn smallest(gpu: &Gpu, base: &Base) -> Result<u64> {
    let tokens = USUAL_ROW.min(base.config().context_length);
    let adapter = random::adapter(base.config(), Module::ALL_LINEAR, 16);
    let trainable = Trainable::new(gpu, &adapter, base.config())?;
    let mut capacity = Capacity::default();
    capacity.include(&random::batches(1, tokens, 100, 1, base.config().vocab)?);
    let passes = Passes { capacity, masked: false, recompute: Recompute::Within(0) };
    let plan = Plan::ahead(gpu, base, tokens, &trainable, passes, Offload::AUTO);
    gpu.send_uploads(None)?;
    gpu.wait()?;
    Ok(plan.total())
}

/// Prints the plan that recomputes every layer and the one that recomputes nothing. Allocates neither weights nor
/// activations.
pub fn run(args: &BenchArgs) -> Result<()> {
    let base = random::open_base(&args.base)?;
    check_sequence(&base, args.sequence)?;
    let step = random::step(args, args.sequence, args.accumulate, base.config().vocab)?;
    let gpu = args.open_gpu(Place::ALONE)?;
    let adapter = random::adapter(base.config(), &args.modules(), args.rank);
    let mut capacity = Capacity::default();
    capacity.include(&step);
    let trainable = Trainable::new(&gpu, &adapter, base.config())?;
    let plan = |recompute, offload| {
        let passes = Passes { capacity, masked: false, recompute };
        Plan::ahead(&gpu, &base, args.sequence, &trainable, passes, offload)
    };
    let smallest = plan(Recompute::Within(0), Offload::NEVER);
    let offloaded = plan(Recompute::Within(0), Offload::AUTO);
    let fastest = plan(Recompute::Never, Offload::NEVER);
    if args.json {
        output::text(json!({
            "base": base.name(), "batch": args.batch, "sequence": args.sequence, "rank": args.rank,
            "kernel_variant": gpu.kernels().tier().to_string(), "smallest_bytes": smallest.total(), "fastest_bytes": fastest.total(),
            "offloaded_bytes": offloaded.total(), "host_bytes": offloaded.offloaded.bytes,
        }));
        return Ok(());
    }
    print(args, &gpu, [&smallest, &offloaded, &fastest]);
    Ok(())
}

fn print(args: &BenchArgs, gpu: &Gpu, [smallest, offloaded, fastest]: [&Plan; 3]) {
    output::device(gpu);
    let tokens = output::count(args.sequence, "token");
    output::line("step", format_args!("{}, {} × {tokens}, rank {}", args.base, args.batch, args.rank));
    output::line("smallest", format_args!("{}, recomputing every layer", output::bytes(smallest.total())));
    if offloaded.offloaded.bytes > 0 {
        let device = output::bytes(offloaded.total());
        let host = output::bytes(offloaded.offloaded.bytes);
        output::line("offloaded", format_args!("{device}, with {host} of matrices in host memory"));
    }
    output::line("fastest", format_args!("{}, recomputing nothing", output::bytes(fastest.total())));
}
