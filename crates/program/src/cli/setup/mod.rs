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
pub mod tuning;

use std::path::PathBuf;

use anyhow::{Result, bail};
use rullama_train::base::Base;
use rullama_train::gpu::Gpu;
use rullama_train::model::plan;
use rullama_train::run::wording;
use rullama_train::words::hex;

/// The layers with experts. An error if the base has none, for `--offload-experts`.
pub fn layers_to_offload(base: &Base) -> Result<Vec<usize>> {
    let layers = plan::with_experts(base);
    if layers.is_empty() {
        bail!(wording::not_a_mixture("--offload-experts", base.name()));
    }
    Ok(layers)
}

/// The file of `gpu`, its driver and this version of the program in the folder `name` of the user's cache folder, if there is one.
fn cache_file(gpu: &Gpu, name: &str) -> Option<PathBuf> {
    let digest = hex(&gpu.digest()[..12]);
    Some(dirs::cache_dir()?.join("rullama-train").join(name).join(format!("{digest}.json")))
}
