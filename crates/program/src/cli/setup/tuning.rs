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

/// The trainer that `make` makes, on a device that computes steps with the micro-batches `batches` as `tuning` says, the same on all of
/// `ranks`. A search gets the memory of the trainer, which is made again then: no plan counts both.
pub fn tuned<'a>(
    gpu: &Gpu,
    tuning: &Tuning,
    ranks: &Ranks,
    batches: &[MicroBatch],
    optimizer: &Optimizer,
    make: impl Fn() -> Result<Trainer<'a>>,
) -> Result<Trainer<'a>> {
    match tuning {
        Tuning::Off => gpu.choose(Choices::new()),
        Tuning::Kept(choices) => gpu.choose(choices.clone()),
        // A software renderer has one kernel for each product.
        Tuning::Find if gpu.is_software() => {}
        Tuning::Find => return found(gpu, ranks, batches, optimizer, make),
    }
    make()
}

/// [`tuned`] with the choices that the device remembers, or that the first rank finds now.
fn found<'a>(
    gpu: &Gpu,
    ranks: &Ranks,
    batches: &[MicroBatch],
    optimizer: &Optimizer,
    make: impl Fn() -> Result<Trainer<'a>>,
) -> Result<Trainer<'a>> {
    let trainer = make()?;
    let products = block_on(trainer.products(batches, optimizer))?;
    let file = cache_file(gpu, "tuning");
    let mut known = file.as_deref().map(read).unwrap_or_default();
    let is_new = |product: &Product| !known.contains_key(&product.to_string());
    let new: Vec<Product> = products.iter().copied().filter(is_new).collect();
    if new.is_empty() || !ranks.is_first() {
        adopt(gpu, &products, &known, ranks)?;
        return Ok(trainer);
    }
    drop(trainer);
    gpu.wait()?;
    known.extend(search(gpu, new)?);
    if let Some(file) = file {
        // Without the file, the next use tries again.
        let _ = files::write_atomic(&file, &serde_json::to_vec_pretty(&known)?);
    }
    adopt(gpu, &products, &known, ranks)?;
    make()
}

fn search(gpu: &Gpu, products: Vec<Product>) -> Result<Choices> {
    let bar = output::spinner("trying kernels, at their first use");
    let found = block_on(tune::tune(gpu, products))?;
    bar.finish_and_clear();
    for way in &found.wrong {
        eprintln!("note: {} computes {way} wrongly; other tiles are used", gpu.device_name());
    }
    Ok(found.choices)
}

/// Adds the first rank's choices for `products` to those of `gpu`.
fn adopt(gpu: &Gpu, products: &[Product], known: &Choices, ranks: &Ranks) -> Result<()> {
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
