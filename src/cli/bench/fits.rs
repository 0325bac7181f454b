//! `bench --fits`: the longest sequence that a GPU of each usual size can train, without running a step.

use anyhow::Result;
use rullama_train::base::Base;
use rullama_train::gpu::{Gpu, Place};
use rullama_train::model::Trainable;
use rullama_train::model::plan::{Offload, Passes, Plan, Recompute};
use rullama_train::train::Capacity;
use serde_json::{Value, json};

use super::{BenchArgs, random};
use crate::cli::output;

/// Usual sizes of GPU memory, in GiB, although they are sold as GB.
const SIZES: [u64; 5] = [6, 8, 12, 16, 24];
/// Bytes that drivers and screens need: docs/memory.md.
const FREE: u64 = 1 << 30;
/// Only powers of two are tried.
const SEQUENCES: [usize; 10] = [131_072, 65_536, 32_768, 16_384, 8192, 4096, 2048, 1024, 512, 256];

/// Prints the longest sequence for each size. Allocates neither weights nor activations.
pub fn run(args: &BenchArgs) -> Result<()> {
    let base = random::open_base(&args.base)?;
    let gpu = args.open_gpu(Place::ALONE)?;
    let mut found = Vec::new();
    for size in SIZES {
        found.push((size, longest(args, &gpu, &base, (size << 30) - FREE)?));
    }
    if args.json {
        output::text(json!({
            "base": base.name(), "batch": args.batch, "rank": args.rank,
            "kernel_variant": gpu.kernels().tier().to_string(), "sizes": found.iter().map(to_json).collect::<Value>(),
        }));
        return Ok(());
    }
    output::device(&gpu);
    output::line(
        "step",
        format_args!("{}, {} per pass, rank {}", args.base, output::count(args.batch, "row"), args.rank),
    );
    for (size, fit) in &found {
        output::line(&format!("{size} GB"), fit.as_ref().map_or("does not fit".into(), Fit::describe));
    }
    Ok(())
}

/// A sequence that fits.
struct Fit {
    tokens: usize,
    plan: Plan,
}

impl Fit {
    fn describe(&self) -> String {
        let tokens = output::count(self.tokens, "token");
        match self.plan.offloaded.bytes {
            0 => tokens,
            bytes => format!("{tokens}, with {} of experts in host memory", output::bytes(bytes)),
        }
    }
}

fn to_json((size, fit): &(u64, Option<Fit>)) -> Value {
    json!({
        "gigabytes": size, "tokens": fit.as_ref().map(|fit| fit.tokens),
        "planned_bytes": fit.as_ref().map(|fit| fit.plan.total()), "host_bytes": fit.as_ref().map(|fit| fit.plan.offloaded.bytes),
    })
}

/// The longest sequence whose step takes at most `limit` bytes.
fn longest(args: &BenchArgs, gpu: &Gpu, base: &Base, limit: u64) -> Result<Option<Fit>> {
    let config = base.config();
    let adapter = random::adapter(config, &args.modules(), args.rank);
    let trainable = Trainable::new(gpu, &adapter, config.layers.len())?;
    for tokens in SEQUENCES.into_iter().filter(|&tokens| tokens <= config.context_length) {
        let mut capacity = Capacity::default();
        capacity.include(&random::batches(
            args.batch,
            tokens,
            args.loss_share,
            args.accumulate,
            config.vocab,
        )?);
        let passes = Passes { capacity, masked: false, recompute: Recompute::Within(limit) };
        let plan = Plan::ahead(gpu, base, tokens, &trainable, passes, Offload::Auto);
        if plan.total() <= limit {
            return Ok(Some(Fit { tokens, plan }));
        }
    }
    Ok(None)
}
