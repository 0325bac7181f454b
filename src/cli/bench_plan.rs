//! `bench --plan`: the memory that a training step needs, without running it.

use anyhow::Result;
use rullama_train::adapter::lora::Adapter;
use rullama_train::base::Base;
use rullama_train::gpu::Gpu;
use rullama_train::model::Trainable;
use rullama_train::model::plan::{Offload, Passes, Plan, Recompute};
use rullama_train::train::trainer::Capacity;
use serde_json::json;

use super::show;

/// Prints the smallest plan and the one that recomputes nothing. Weights and activations are not allocated.
pub fn run(
    gpu: &Gpu,
    base: &Base,
    adapter: &Adapter,
    sequence: usize,
    capacity: Capacity,
    json: bool,
) -> Result<()> {
    let trainable = Trainable::new(gpu, adapter, base.config().layers.len())?;
    let plan = |recompute, offload| {
        let passes = Passes { capacity, masked: false, recompute };
        Plan::ahead(gpu, base, sequence, &trainable, passes, offload)
    };
    let smallest = plan(Recompute::Within(0), Offload::Never).total();
    let offloaded = plan(Recompute::Within(0), Offload::Auto);
    let fastest = plan(Recompute::Never, Offload::Never).total();
    if json {
        show::text(json!({
            "base": base.name(), "tokens": capacity.tokens, "sequence": sequence, "rank": adapter.rank,
            "kernels": gpu.tier().to_string(), "smallest_bytes": smallest, "fastest_bytes": fastest,
            "offloaded_bytes": offloaded.total(), "host_bytes": offloaded.offloaded.bytes,
        }));
        return Ok(());
    }
    show::device(gpu);
    show::line("base", base.name());
    let tokens = show::count(capacity.tokens, "token");
    show::line("smallest", format_args!("{} for {tokens}, recomputing every layer", show::bytes(smallest)));
    if !offloaded.offloaded.layers.is_empty() {
        let (device, host) = (show::bytes(offloaded.total()), show::bytes(offloaded.offloaded.bytes));
        show::line("offloaded", format_args!("{device} with {host} of experts in host memory"));
    }
    show::line("fastest", format_args!("{}, recomputing nothing", show::bytes(fastest)));
    Ok(())
}
