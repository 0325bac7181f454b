//! Experts in host memory: which of them, and how long their copies take.

use std::time::Instant;

use anyhow::{Result, bail};
use pollster::block_on;
use rullama_train::adapter::lora::Adapter;
use rullama_train::base::Base;
use rullama_train::gpu::Gpu;
use rullama_train::model::plan::{Offload, Offloaded, Passes, Plan, Recompute};
use rullama_train::model::{Model, Trainable};
use rullama_train::train::Capacity;

use super::BenchArgs;
use crate::cli::output;
use crate::cli::setup::layers_to_offload;

/// The layers whose experts stay in host memory. Plans before the model is uploaded; an error if the plan exceeds
/// `--memory-limit`.
pub fn layers(
    args: &BenchArgs,
    gpu: &Gpu,
    base: &Base,
    adapter: &Adapter,
    capacity: Capacity,
) -> Result<Vec<usize>> {
    let all = if args.offload_experts { layers_to_offload(base)? } else { Vec::new() };
    let recompute = args.recompute();
    let Recompute::Within(limit) = recompute else { return Ok(all) };
    let trainable = Trainable::new(gpu, adapter, base.config().layers.len())?;
    let offload = if args.offload_experts { Offload::All } else { Offload::Auto };
    let passes = Passes { capacity, masked: false, recompute };
    let plan = Plan::ahead(gpu, base, args.sequence, &trainable, passes, offload);
    if plan.total() > limit {
        let gib = args.memory_limit.unwrap_or_default();
        let needed = output::bytes(plan.total());
        let experts = if plan.offloaded.layers.is_empty() { "" } else { " and all experts in host memory" };
        bail!(
            "--memory-limit is {gib} GiB, but {} × {} tokens need {needed} with every layer recomputed{experts}; lower \
             --sequence or --batch, or raise the limit",
            args.batch,
            args.sequence
        );
    }
    Ok(plan.offloaded.layers)
}

/// Seconds that a step's copies of experts take when nothing else runs.
pub fn copy_seconds(gpu: &Gpu, model: &Model, copies: &Offloaded) -> Result<f64> {
    if copies.training == 0 {
        return Ok(0.0);
    }
    let started = Instant::now();
    let copied = block_on(model.copy_experts(gpu, copies.layers.len()))?;
    Ok(started.elapsed().as_secs_f64() * copies.training as f64 / copied as f64)
}
