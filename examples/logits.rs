//! Computes logits with the base and adapter of a finished run.
//!
//!   cargo run --release --example logits -- runs/chat "What is the capital of Peru?" logits.safetensors
//!
//! The file contains `tokens` i64 [T], the message in the model's chat template with the prompt for the reply, and `logits`
//! f32 [T, V], after the softcap.

use std::path::Path;

use anyhow::{Context, Result};
use pollster::block_on;
use rullama_train::{
    AdapterPath, Capacity, Dropout, Gpu, IGNORE, MicroBatch, Model, OpenBase, Recipe, Recompute, Sample,
    Trainer, load_adapters,
};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, message, out] = &arguments[..] else {
        anyhow::bail!("usage: logits RUN_FOLDER MESSAGE OUT.safetensors");
    };
    // The resolved recipe has the base, the rank and the modules of the adapter.
    let overrides: [(&str, &str); 0] = [];
    let recipe = Recipe::read(&Path::new(dir).join("recipe.resolved.toml"), &overrides)?;
    let frozen = OpenBase::open(&recipe)?;
    let config = frozen.base.config();
    let other = recipe.lora.allow_other_base.into();
    let adapter = load_adapters(&[AdapterPath::whole(dir)], &frozen.base, None, other)?.adapter;

    let ids = frozen.prompt(message)?;
    let sample =
        Sample { labels: vec![IGNORE; ids.len()], ids, origin: "the message".into(), ..Sample::default() };
    let batch = MicroBatch::pack([&sample]);
    let rows: Vec<u32> = (0..batch.len() as u32).collect();

    let gpu = block_on(Gpu::open(recipe.device.options()))?;
    let model = Model::load(&gpu, &frozen.base, batch.len())?;
    let capacity = Capacity {
        tokens: batch.len(),
        longest: batch.longest(),
        loss_tokens: rows.len(),
        ..Capacity::LEAST
    };
    let trainer = Trainer::new(&gpu, &model, &adapter, capacity, Dropout::NONE, Recompute::Never)?;
    let logits = block_on(trainer.logits(&batch, &rows))?;

    let tokens: Vec<i64> = batch.tokens.iter().map(|&t| i64::from(t)).collect();
    let shape = vec![batch.len(), config.vocab];
    let tensors = [
        ("tokens", TensorView::new(Dtype::I64, vec![batch.len()], bytemuck::cast_slice(&tokens))?),
        ("logits", TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(&logits))?),
    ];
    let bytes = safetensors::serialize(tensors, None)?;
    std::fs::write(out, &bytes).context("the logits were not written")?;
    println!("{} tokens, {} logits each, in {out}", batch.len(), config.vocab);
    Ok(())
}
