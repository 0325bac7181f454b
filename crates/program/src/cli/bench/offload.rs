//! The contents of host memory, and how long their copies take.

use std::time::Instant;

use anyhow::{Result, bail};
use pollster::block_on;
use rullama_train::adapter::lora::Adapter;
use rullama_train::base::Base;
use rullama_train::gpu::Gpu;
use rullama_train::model::plan::{Offload, Offloaded, OnHost, Passes, Plan, Recompute, Share};
use rullama_train::model::{Model, Trainable};
use rullama_train::train::Capacity;

use super::BenchArgs;
use crate::cli::output;
use crate::cli::setup::layers_to_offload;

/// The contents of host memory. Plans before the model is uploaded; an error if the plan exceeds `--memory-limit`.
pub fn on_host(
    args: &BenchArgs,
    gpu: &Gpu,
    base: &Base,
    adapter: &Adapter,
    capacity: Capacity,
) -> Result<OnHost> {
    if args.offload_experts {
        layers_to_offload(base)?;
    }
    let (recompute, offload) = (args.recompute(), offload(args));
    let Recompute::Within(limit) = recompute else { return Ok(offload.without_limit(base)) };
    let trainable = Trainable::new(gpu, adapter, base.config())?;
    let passes = Passes { capacity, masked: false, recompute };
    let plan = Plan::ahead(gpu, base, args.sequence, &trainable, passes, offload);
    if plan.total() > limit {
        let gib = args.memory_limit.unwrap_or_default();
        let needed = output::bytes(plan.total());
        let on_host = &plan.offloaded.on_host;
        let host = match (on_host.experts.is_empty(), on_host.layers.is_empty()) {
            (true, true) => "",
            (false, true) => " and all experts in host memory",
            (_, false) => " and layers in host memory",
        };
        bail!(
            "--memory-limit is {gib} GiB, but {} × {} tokens need {needed} with every layer recomputed{host}; lower --sequence or \
             --batch, or raise the limit",
            args.batch,
            args.sequence
        );
    }
    Ok(plan.offloaded.on_host)
}

/// The options on host memory.
fn offload(args: &BenchArgs) -> Offload {
    Offload {
        experts: if args.offload_experts { Share::All } else { Share::Auto },
        layers: args.offload_layers.map_or(Share::Auto, Share::Layers),
        inputs: match args.offload_inputs {
            None => Share::Auto,
            Some(true) => Share::All,
            Some(false) => Share::Never,
        },
    }
}

/// Seconds that a step's copies of matrices take when nothing else runs.
pub fn copy_seconds(gpu: &Gpu, model: &Model, copies: &Offloaded) -> Result<f64> {
    if copies.training == 0 {
        return Ok(0.0);
    }
    let started = Instant::now();
    let copied = block_on(model.copy_layers(gpu, copies.on_host.of_layers().len()))?;
    Ok(started.elapsed().as_secs_f64() * copies.training as f64 / copied as f64)
}
