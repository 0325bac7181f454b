//! Uploading the base within the recipe's memory limit.

use super::{dropout, offload, recompute};
use crate::adapter::lora::Adapter;
use crate::base::Base;
use crate::data::batch::Capacity;
use crate::gpu::{Gpu, GpuError};
use crate::model::plan::{Passes, Recompute};
use crate::model::{Model, Plan, Trainable};
use crate::recipe::Recipe;

/// Uploads `base` with rotary tables for `positions` positions. `progress` is called with the number of layers uploaded.
///
/// What the recipe says stays in host memory, and where it leaves the choice, what makes training `adapter` with passes up to `capacity`
/// within `train.memory_limit` fastest.
pub async fn load<'b>(
    gpu: &Gpu,
    base: &'b Base,
    recipe: &Recipe,
    adapter: &Adapter,
    capacity: Capacity,
    positions: usize,
    progress: impl FnMut(usize),
) -> Result<Model<'b>, GpuError> {
    let on_host = match recompute(recipe) {
        Recompute::Within(_) => plan(gpu, base, recipe, adapter, capacity, positions)?.offloaded.on_host,
        _ => offload(recipe).without_limit(base),
    };
    Model::offloading(gpu, base, positions, &on_host, progress).await
}

/// Bytes of a GPU's memory that drivers and screens need: docs/memory.md.
pub const FREE: u64 = 1 << 30;

/// The memory plan of a run before `base` is on the device: see [`load`] for the arguments. Only the adapter is uploaded, and let go again.
pub fn plan(
    gpu: &Gpu,
    base: &Base,
    recipe: &Recipe,
    adapter: &Adapter,
    capacity: Capacity,
    positions: usize,
) -> Result<Plan, GpuError> {
    let adapter = Trainable::new(gpu, adapter, base.config())?;
    let masked = dropout(recipe).probability > 0.0;
    let passes = Passes { capacity, masked, recompute: recompute(recipe) };
    Ok(Plan::ahead(gpu, base, positions, &adapter, passes, offload(recipe)))
}
