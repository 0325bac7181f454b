//! Adapters from disk: what their files say, whether they fit a base, and what they do to its loss, alone and added up.
//!
//!   cargo run --release --example load -- runs/example=0.5 tests/golden/chat/adapter=0.5

use anyhow::Result;
use pollster::block_on;
use rullama_train::{
    Adapter, AdapterPath, Capacity, Dropout, Gpu, GpuOptions, MicroBatch, Model, OpenBase, OtherBase, Recipe,
    Recompute, Trainer, load_adapters, samples,
};

/// Text whose losses are computed.
const TEXT: &str =
    r#"{"prompt": "What is the capital of Peru?", "completion": "The capital of Peru is Lima. Aye, matey!"}"#;

fn main() -> Result<()> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    run(&paths)
}

/// Loads adapters of any format, spelled `PATH` or `PATH=WEIGHT`, for the tiny base.
pub fn run(paths: &[String]) -> Result<()> {
    let parse = |path: &String| path.parse::<AdapterPath>().map_err(anyhow::Error::msg);
    let paths = paths.iter().map(parse).collect::<Result<Vec<_>>>()?;
    let mut recipe = Recipe::new("tiny");
    recipe.data.max_seq_len = Some(256);
    let frozen = OpenBase::open(&recipe)?;
    // Shapes, names and the base's fingerprint are checked; what does not fit is named.
    let found = load_adapters(&paths, &frozen.base, None, OtherBase::Refuse)?;
    found.notices.iter().for_each(|notice| println!("{notice}"));
    let (adapter, origin) = (found.adapter, found.origin);
    println!(
        "{} matrices, rank {}, scale {}, trained on {:?}",
        adapter.pairs.len(),
        adapter.rank,
        adapter.scale(),
        origin.base_model
    );

    let samples = samples(&frozen, &recipe, TEXT, "text")?;
    let batch = MicroBatch::pack(&samples);

    let gpu = block_on(Gpu::open(GpuOptions::default()))?;
    let model = Model::load(&gpu, &frozen.base, batch.len())?;
    let (tokens, loss_tokens) = (batch.len(), batch.loss_rows.len());
    let capacity =
        Capacity { tokens, longest: tokens, loss_tokens, step_loss_tokens: loss_tokens, ..Capacity::LEAST };
    let loss = |adapter: &Adapter| -> Result<f64> {
        let trainer = Trainer::new(&gpu, &model, adapter, capacity, Dropout::NONE, Recompute::Always)?;
        Ok(block_on(trainer.evaluate(std::slice::from_ref(&batch), |_| {}))?.loss())
    };
    let slots: Vec<_> = adapter.pairs.keys().copied().collect();
    println!("loss of the base {:.4}", loss(&Adapter::init(&slots, 1, 1.0, false, 0))?);
    println!("loss with the adapter {:.4}", loss(&adapter)?);
    Ok(())
}
