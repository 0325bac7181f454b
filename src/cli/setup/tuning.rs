//! The fastest way to compute each product, found at the first use of a device and driver, and remembered in the user's cache folder.

use std::path::Path;

use anyhow::Result;
use pollster::block_on;
use rullama_train::data::batch::MicroBatch;
use rullama_train::files;
use rullama_train::gpu::{Choices, Gpu, Product};
use rullama_train::ops::linear::tune;
use rullama_train::train::ranks::Ranks;
use rullama_train::train::{Optimizer, Trainer};

use super::cache_file;
use crate::cli::output;

/// The choices of a run.
pub enum Tuning {
    /// Those that this device remembers, or finds now.
    Find,
    /// Those of a checkpoint.
    Kept(Choices),
    /// The usual ones.
    Off,
}

impl Tuning {
    /// The tuning that a recipe or an option asks for.
    pub fn wanted(tune: bool) -> Tuning {
        if tune { Tuning::Find } else { Tuning::Off }
    }
}

/// Makes the choices for steps with the micro-batches `batches`, the same on all of `ranks`, and compiles the kernels for them.
/// Returns the number of kernels that were not compiled before.
pub fn compile(
    gpu: &Gpu,
    trainer: &Trainer,
    batches: &[MicroBatch],
    optimizer: &Optimizer,
    tuning: &Tuning,
    ranks: &Ranks,
) -> Result<usize> {
    match tuning {
        Tuning::Off => gpu.choose(Choices::new()),
        Tuning::Kept(choices) => gpu.choose(choices.clone()),
        // A software renderer has one kernel for each product.
        Tuning::Find if gpu.is_software() => {}
        Tuning::Find => find(gpu, &block_on(trainer.products(batches, optimizer))?, ranks)?,
    }
    Ok(block_on(trainer.compile(batches, optimizer))?)
}

/// Adds the choices for `products` to those of `gpu`: the first rank's.
fn find(gpu: &Gpu, products: &[Product], ranks: &Ranks) -> Result<()> {
    let file = cache_file(gpu, "tuning");
    let mut known = file.as_deref().map(read).unwrap_or_default();
    let is_new = |name: &String| !known.contains_key(name);
    let missing: Vec<_> = products.iter().copied().filter(|p| is_new(&p.to_string())).collect();
    if ranks.is_first() && !missing.is_empty() {
        let bar = output::spinner("trying kernels, at their first use");
        let found = block_on(tune::tune(gpu, missing))?;
        bar.finish_and_clear();
        for way in &found.wrong {
            eprintln!("note: {} computes {way} wrongly; other tiles are used", gpu.device_name());
        }
        known.extend(found.choices);
        if let Some(file) = file {
            // Without the file, the next use tries again.
            let _ = files::write_atomic(&file, &serde_json::to_vec_pretty(&known)?);
        }
    }
    let own = products.iter().map(ToString::to_string);
    let own: Choices = own.filter_map(|name| known.get(&name).map(|choice| (name, *choice))).collect();
    let first = ranks.gather(&serde_json::to_vec(&own)?)?.swap_remove(0);
    let mut all = gpu.choices();
    all.extend(serde_json::from_slice::<Choices>(&first)?);
    gpu.choose(all);
    Ok(())
}

/// The choices in a file; none if there is no such file, or another program has written it.
fn read(file: &Path) -> Choices {
    let bytes = files::read(file).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}
