//! The examples do what their headers promise: with the library alone, a program trains, loads, replies and exports.

use std::path::Path;

use libtest_mimic::Failed;
use rullama_train::base::Base;
use rullama_train::data::batch::Sample;
use rullama_train::gpu::Gpu;
use rullama_train::model::Model;
use rullama_train::recipe::Recipe;
use rullama_train::run::OpenBase;
use rullama_train::run::finetune::{FinetuneError, finetune, samples};
use rullama_train::talk::generate::greedy;

use super::check_that;
use crate::pieces::Pieces;

#[allow(dead_code, reason = "their `main`")]
#[path = "../../examples/export.rs"]
mod export;
#[allow(dead_code, reason = "their `main`")]
#[path = "../../examples/generate.rs"]
mod generate;
#[allow(dead_code, reason = "their `main`")]
#[path = "../../examples/load.rs"]
mod load;
#[allow(dead_code, reason = "their `main`")]
#[path = "../../examples/train.rs"]
mod train;

pub fn examples(_: &Gpu) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let adapter = dir.path().join("adapter");
    let path = adapter.display().to_string();
    train::run(&adapter).map_err(|e| e.to_string())?;
    load::run(&[format!("{path}=0.5"), "tests/golden/chat/adapter=0.5".into()]).map_err(|e| e.to_string())?;
    let reply = generate::run(&path, "What is the capital of Peru?").map_err(|e| e.to_string())?;
    println!("{reply}");
    check_that("the reply is a pirate's", reply.contains("Lima") && reply.contains("Aye, matey!"))?;
    let out = dir.path().join("exported");
    export::run(&path, &out).map_err(|e| e.to_string())?;
    let there = |name: &str| Path::new(&out).join(name).exists();
    let names = ["adapter_config.json", "adapter.gguf", "adapter-f16.gguf", "mlx", "merged.gguf"];
    check_that("everything was exported", names.into_iter().all(there))
}

/// `finetune` gives the same numbers as the program, and its errors are readable.
pub fn quick_path(gpu: &Gpu) -> Result<(), Failed> {
    let mut recipe = Recipe::new("tiny");
    recipe.data.max_seq_len = Some(64);
    recipe.train.max_steps = Some(2);
    recipe.lora.rank = 4;
    let frozen = OpenBase::open(&recipe)?;
    let text = "{\"prompt\": \"Hello!\", \"completion\": \"Ahoy!\"}\n";
    let samples: Vec<Sample> = samples(&frozen, &recipe, text, "text")?;
    let train = |recipe: &Recipe| {
        let mut losses = Vec::new();
        let adapter =
            pollster::block_on(finetune(gpu, &frozen, &samples, recipe, |p| losses.push(p.metrics.loss)));
        adapter.map(|adapter| (adapter, losses))
    };
    let (adapter, losses) = train(&recipe)?;
    check_that("the same settings give the same bits", train(&recipe)? == (adapter, losses.clone()))?;
    check_that("it reports every step", losses.len() == 2)?;
    // One step, which is the warm-up: the learning rate is zero.
    recipe.train.max_steps = Some(1);
    recipe.train.warmup_steps = Some(5);
    check_that("nothing learned is an error", matches!(train(&recipe), Err(FinetuneError::Unmoved)))
}

/// A base that stays on a disk or a server: it is uploaded matrix by matrix, and per-layer embedding rows are fetched per
/// batch.
pub fn streamed(gpu: &Gpu) -> Result<(), Failed> {
    let mut recipe = Recipe::new("tiny");
    recipe.data.max_seq_len = Some(64);
    recipe.train.max_steps = Some(2);
    let whole = OpenBase::open(&recipe)?;
    let pieces = Pieces::of(std::fs::read("models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf")?);
    let base = pollster::block_on(Base::stream(Box::new(pieces.clone()), "tiny"))?;
    let streamed = OpenBase::of(base, &recipe.data.template)?;
    let text = "{\"prompt\": \"Hello!\", \"completion\": \"Ahoy!\"}\n";
    let samples: Vec<Sample> = samples(&whole, &recipe, text, "text")?;
    let prompt = whole.prompt("Hello!")?;
    let run = async |frozen: &OpenBase| -> Result<_, Failed> {
        let mut losses = Vec::new();
        let adapter =
            finetune(gpu, frozen, &samples, &recipe, |p| losses.push(p.metrics.loss.map(f64::to_bits)))
                .await?;
        let model = Model::stream(gpu, &frozen.base, 64, |_| ()).await?;
        let reply = greedy(gpu, &model, &frozen.tokenizer, &adapter, [&prompt[..]], 8, |_| ()).await?;
        Ok((losses, adapter, reply))
    };
    let found = pollster::block_on(run(&streamed))?;
    check_that("the numbers and the replies are the same", found == pollster::block_on(run(&whole))?)?;
    let largest = streamed.base.tensors().map(|t| t.range.end - t.range.start).max().unwrap_or(0);
    check_that("no more than a matrix was read at once", pieces.take_read().1 <= largest)
}
