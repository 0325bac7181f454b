//! Generates a greedy reply with an adapter.
//!
//!   cargo run --release --example generate -- tests/golden/chat/adapter "What is the capital of Peru?"

use anyhow::{Context, Result};
use pollster::block_on;
use rullama_train::{
    AdapterPath, Gpu, GpuOptions, Model, OpenBase, OtherBase, Recipe, generate, load_adapters,
};

/// Longest reply, in tokens.
const REPLY: usize = 24;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let adapter = arguments.next().context("usage: generate ADAPTER QUESTION")?;
    let question = arguments.next().context("usage: generate ADAPTER QUESTION")?;
    println!("{}", run(&adapter, &question)?);
    Ok(())
}

/// The reply of the tiny base with the adapter.
pub fn run(adapter: &str, question: &str) -> Result<String> {
    let mut recipe = Recipe::new("tiny");
    recipe.data.max_seq_len = Some(256);
    let frozen = OpenBase::open(&recipe)?;
    let adapter =
        load_adapters(&[AdapterPath::whole(adapter)], &frozen.base, None, OtherBase::Refuse)?.adapter;
    let prompt = frozen.prompt(question)?;
    let tokens = prompt.len() + REPLY;

    let gpu = block_on(Gpu::open(GpuOptions::default()))?;
    let model = Model::load(&gpu, &frozen.base, tokens)?;
    let prompts = [&prompt[..]];
    let replies = block_on(generate(&gpu, &model, &frozen.tokenizer, &adapter, prompts, REPLY, |_| {}))?;
    Ok(replies.concat())
}
