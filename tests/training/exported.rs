//! A PEFT folder, read, written and read again, must compute what PEFT computes.
//!
//! tests/golden/chat/peft_logits.py wrote the logits.

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::batch::{IGNORE, MicroBatch, Sample};
use rullama_train::export::{Options, peft};
use rullama_train::gpu::Gpu;
use rullama_train::lora::{Module, slots};
use rullama_train::model::Model;
use rullama_train::model::plan::Recompute;
use rullama_train::train::{Capacity, Trainer};
use rullama_train::weights::Base;
use safetensors::SafeTensors;

use super::chat::ADAPTER;
use super::{NO_DROPOUT, check, check_that, gpu};

/// As in tests/golden.rs.
const LOGITS: f64 = 2e-5;

pub fn logits(gpu: &Gpu) -> Result<(), Failed> {
    let bytes = std::fs::read("tests/golden/chat/peft_logits.safetensors").expect("a golden file");
    let file = SafeTensors::deserialize(&bytes).expect("a sound golden file");
    let data = |name: &str| file.tensor(name).expect("a tensor of that name").data().to_vec();
    let ids: Vec<u32> = data("tokens").as_chunks().0.iter().map(|&b| i64::from_le_bytes(b) as u32).collect();
    let expected: Vec<f64> =
        data("logits").as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect();

    let base = Base::tiny().expect("the model in the program");
    let config = base.config();
    let all = slots(config, &Module::ALL);
    let first = peft::read(ADAPTER.as_ref(), config, &all)?;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let dir = dir.path().join("adapter");
    let options = Options { base_model: "tiny", dropout: 0.0, fingerprint: None };
    peft::write(&dir, &first, peft::Naming::CausalLm, &options)?;
    let adapter = peft::read(&dir, config, &all)?;
    check_that("reading, writing and reading changes nothing", adapter == first)?;

    let model = Model::load(gpu, &base, ids.len()).expect("the model fits");
    // PEFT's logits are those of the last rows.
    let rows: Vec<u32> = (0..ids.len() as u32).rev().take(expected.len() / config.vocab).rev().collect();
    let sample = Sample { labels: vec![IGNORE; ids.len()], ids, origin: String::new() };
    let batch = MicroBatch::pack([&sample]);
    let capacity = Capacity { tokens: batch.len(), loss_tokens: rows.len(), step_loss_tokens: 1 };
    let trainer = Trainer::new(gpu, &model, &adapter, capacity, NO_DROPOUT, Recompute::Never)?;
    let found: Vec<f64> = block_on(trainer.logits(&batch, &rows))?.into_iter().map(f64::from).collect();
    check("logits", gpu::relative(&found, &expected), LOGITS)
}
