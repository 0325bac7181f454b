//! Set-up that commands share: the device, everything that a recipe names, and text to compare results on.

pub mod base_digest;
pub mod comparison;
pub mod device;
mod first_use;
mod pipeline_cache;
mod pipelines_file;
pub mod session;
pub mod summary;
pub mod timings;

use anyhow::{Result, bail};
use rullama_train::base::Base;
use rullama_train::model::plan;
use rullama_train::run::wording;

/// The layers with experts. An error if the base has none, for `--offload-experts`.
pub fn layers_to_offload(base: &Base) -> Result<Vec<usize>> {
    let layers = plan::with_experts(base);
    if layers.is_empty() {
        bail!(wording::not_a_mixture("--offload-experts", base.name()));
    }
    Ok(layers)
}
