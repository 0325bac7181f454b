//! The base on the device, as far as the recipe's memory allows.

use super::{dropout, offload, recompute};
use crate::adapter::lora::Adapter;
use crate::base::Base;
use crate::gpu::{Gpu, GpuError};
use crate::model::plan::{self, Offload, Passes, Recompute};
use crate::model::{Model, Plan, Trainable};
use crate::recipe::Recipe;
use crate::train::trainer::Capacity;

/// Uploads `base` with rotary tables for `positions` positions; `progress` hears how many layers are on the device.
///
/// Experts stay in host memory where `train.offload_experts` says so, or where training `adapter` with passes up to `capacity` would
/// not fit `train.memory_limit` otherwise.
pub async fn load<'b>(
    gpu: &Gpu,
    base: &'b Base,
    recipe: &Recipe,
    adapter: &Adapter,
    capacity: Capacity,
    positions: usize,
    progress: impl FnMut(usize),
) -> Result<Model<'b>, GpuError> {
    let (recompute, with_experts) = (recompute(recipe), plan::with_experts(base));
    let layers = match (offload(recipe), recompute) {
        (Offload::All, _) => with_experts,
        (Offload::Auto, Recompute::Within(_)) if !with_experts.is_empty() => {
            let adapter = Trainable::new(gpu, adapter, base.config().layers.len())?;
            let passes = Passes { capacity, masked: dropout(recipe).probability > 0.0, recompute };
            Plan::ahead(gpu, base, positions, &adapter, passes, Offload::Auto).offloaded.layers
        }
        _ => Vec::new(),
    };
    Model::offloading(gpu, base, positions, &layers, progress).await
}
