//! `bench --plan`: the memory that a training step needs, without running it.

use anyhow::Result;
use rullama_train::gpu::{Gpu, Place};
use rullama_train::model::Trainable;
use rullama_train::model::plan::{Offload, Passes, Plan, Recompute};
use rullama_train::train::Capacity;
use serde_json::json;

use super::{BenchArgs, check_sequence, random};
use crate::cli::output;

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
    let trainable = Trainable::new(&gpu, &adapter, base.config().layers.len())?;
    let plan = |recompute, offload| {
        let passes = Passes { capacity, masked: false, recompute };
        Plan::ahead(&gpu, &base, args.sequence, &trainable, passes, offload)
    };
    let smallest = plan(Recompute::Within(0), Offload::Never);
    let offloaded = plan(Recompute::Within(0), Offload::Auto);
    let fastest = plan(Recompute::Never, Offload::Never);
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
    if !offloaded.offloaded.layers.is_empty() {
        let device = output::bytes(offloaded.total());
        let host = output::bytes(offloaded.offloaded.bytes);
        output::line("offloaded", format_args!("{device}, with {host} of experts in host memory"));
    }
    output::line("fastest", format_args!("{}, recomputing nothing", output::bytes(fastest.total())));
}
