//! Uploading the base within the recipe's memory limit.

use super::{dropout, offload, recompute};
use crate::adapter::lora::Adapter;
use crate::base::Base;
use crate::data::batch::Capacity;
use crate::gpu::{Gpu, GpuError};
use crate::model::plan::{self, Offload, Passes, Recompute};
use crate::model::{Model, Plan, Trainable};
use crate::recipe::Recipe;

/// Uploads `base` with rotary tables for `positions` positions. `progress` is called with the number of layers uploaded.
///
/// Experts stay in host memory if `train.offload_experts` is set, or if training `adapter` with passes up to `capacity` would
/// otherwise exceed `train.memory_limit`.
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
