//! Loads adapters, checks that they fit a base, adds them up, and measures their effect on the loss.
//!
//!   cargo run --release --example load -- runs/example=0.5 tests/golden/chat/adapter=0.5

use anyhow::Result;
use pollster::block_on;
use rullama_train::adapter::lora::Adapter;
use rullama_train::data::batch::MicroBatch;
use rullama_train::export::{self, AdapterPath, OtherBase};
use rullama_train::gpu::{Backend, Gpu};
use rullama_train::model::Model;
use rullama_train::model::plan::Recompute;
use rullama_train::recipe::Recipe;
use rullama_train::run::Frozen;
use rullama_train::run::finetune::samples;
use rullama_train::train::trainer::{Capacity, Dropout, Trainer};

/// The sample on which the losses are measured.
const TEXT: &str =
    r#"{"prompt": "What is the capital of Peru?", "completion": "The capital of Peru is Lima. Aye, matey!"}"#;

fn main() -> Result<()> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    run(&paths)
}

/// Loads adapters in any export format, given as `PATH` or `PATH=WEIGHT`, for the tiny base.
pub fn run(paths: &[String]) -> Result<()> {
    let parse = |path: &String| path.parse::<AdapterPath>().map_err(anyhow::Error::msg);
    let paths = paths.iter().map(parse).collect::<Result<Vec<_>>>()?;
    let mut recipe = Recipe::new("tiny");
    recipe.data.max_seq_len = 256;
    let frozen = Frozen::open(&recipe)?;
    // Checks shapes, names and the fingerprint of the base. Errors say what does not fit.
    let found = export::load(&paths, &frozen.base, None, OtherBase::Refuse)?;
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

    let gpu = block_on(Gpu::open(Backend::Auto, None, false))?;
    let model = Model::load(&gpu, &frozen.base, batch.len())?;
    let (tokens, loss_tokens) = (batch.len(), batch.loss_rows.len());
    let capacity = Capacity { tokens, longest: tokens, loss_tokens, step_loss_tokens: loss_tokens };
    let loss = |adapter: &Adapter| -> Result<f64> {
        let trainer = Trainer::new(&gpu, &model, adapter, capacity, Dropout::NONE, Recompute::Always)?;
        Ok(block_on(trainer.evaluate(std::slice::from_ref(&batch), |_| {}))?.loss())
    };
    let slots: Vec<_> = adapter.pairs.keys().copied().collect();
    println!("loss of the base {:.4}", loss(&Adapter::init(&slots, 1, 1.0, false, 0))?);
    println!("loss with the adapter {:.4}", loss(&adapter)?);
    Ok(())
}
