//! Texts that a teacher writes: sampled from its own distribution, so that it is asked where it knows what it says.

use std::ops::ControlFlow;

use anyhow::{Result, bail};
use pollster::block_on;
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::talk::generate::{Finish, Generator, Options};
use rullama_train::talk::sampling::Sampling;
use serde_json::json;

use super::RepairArgs;
use crate::cli::output;
use crate::cli::talk::{Loaded, ModelArgs};

/// Samples of token ids, as JSON Lines.
pub fn texts(args: &RepairArgs) -> Result<String> {
    let loaded = Loaded::open(&ModelArgs::of(&args.teacher))?;
    let (count, tokens) = (args.write as usize, args.tokens as usize);
    if tokens > loaded.context() {
        bail!("--tokens {tokens}: {} takes {}; lower it", args.teacher, loaded.context());
    }
    let of = output::count(count, "text");
    output::line("teacher", format_args!("{} writes {of} of {tokens} tokens", args.teacher));
    let model = loaded.model()?;
    let workspace = loaded.workspace(&model)?;
    let tokenizer = &loaded.frozen.tokenizer;
    let mut generator = Generator::new(&workspace, tokenizer, None)?;
    let bar = output::Progress::new("texts", count);
    let mut lines = String::new();
    for number in 0..count {
        let seed = args.seed.wrapping_mul(1 << 40).wrapping_add((number as u64) << 16);
        let ids = one(&mut generator, tokenizer, tokens, seed)?;
        if number == 0 {
            let start: String = tokenizer.decode(&ids).chars().take(200).collect();
            output::line("first", format_args!("{start:?} …"));
        }
        lines += &format!("{}\n", json!({ "input_ids": ids }));
        bar.set_position(number + 1);
    }
    bar.finish_and_clear();
    Ok(lines)
}

/// Token ids of a text. Where the model ends one, it goes on with the next, as in what it was trained on.
fn one(generator: &mut Generator, tokenizer: &Tokenizer, tokens: usize, mut seed: u64) -> Result<Vec<u32>> {
    let mut ids = vec![tokenizer.bos().unwrap_or(tokenizer.end_of_text())];
    generator.reset();
    while ids.len() < tokens {
        let sampling = Sampling { temperature: 1.0, seed, ..Sampling::GREEDY };
        let max_new_tokens = tokens - ids.len();
        let options = Options { sampling, max_new_tokens, stop: Vec::new(), logprobs: Some(0) };
        let reply = block_on(generator.reply(&ids, &options, |_| ControlFlow::Continue(())))?;
        ids.extend(&reply.ids);
        if reply.finish == Finish::Stop && ids.len() < tokens {
            ids.push(reply.end.map_or(tokenizer.turn_end(), |end| end.id));
        }
        seed = seed.wrapping_add(1);
    }
    Ok(ids)
}
