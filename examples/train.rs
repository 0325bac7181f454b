//! Trains an adapter on a few conversations without a recipe file.
//!
//!   cargo run --release --example train -- runs/example

use std::path::Path;

use anyhow::Result;
use pollster::block_on;
use rullama_train::{
    Format, Gpu, GpuOptions, OpenBase, Recipe, finetune, samples, write_adapter, write_options,
};

fn main() -> Result<()> {
    run(Path::new(&std::env::args().nth(1).unwrap_or("runs/example".into())))
}

/// Trains the tiny base on twenty-four conversations and writes a PEFT folder to `out`.
pub fn run(out: &Path) -> Result<()> {
    // Start from the defaults and change some keys. recipes/chat.toml documents each key.
    let mut recipe = Recipe::new("tiny");
    recipe.lora.rank = 8;
    recipe.data.max_seq_len = Some(128);
    recipe.train.learning_rate = 4e-3;

    let frozen = OpenBase::open(&recipe)?;
    let conversations: Vec<&str> = include_str!("../datasets/pirate.jsonl").lines().take(24).collect();
    let samples = samples(&frozen, &recipe, &conversations.join("\n"), "pirate.jsonl")?;

    let gpu = block_on(Gpu::open(GpuOptions::default()))?;
    let training = finetune(&gpu, &frozen, &samples, &recipe, |p| {
        println!("step {}/{}: loss {:.4}", p.step, p.steps, p.metrics.loss.unwrap_or(f64::NAN));
    });
    let adapter = block_on(training)?;

    let fingerprint = frozen.fingerprint.to_string();
    let options = write_options(&recipe, &fingerprint, frozen.base.vocabulary());
    write_adapter(out, Format::Peft, &adapter, frozen.base.config(), &options)?;
    println!("{} trainable parameters in {}", adapter.parameters(), out.display());
    Ok(())
}
