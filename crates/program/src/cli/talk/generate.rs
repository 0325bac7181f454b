//! `generate`: replies to prompts from the command line, files or stdin.

use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use pollster::block_on;
use rullama_train::talk::generate::{Event, Finish, Generator};
use rullama_train::talk::scores::MAX_TOP;
use serde_json::json;

use super::judged::RewardArgs;
use super::prompts::{Prompt, PromptArgs};
use super::several::{self, Form};
use super::{Loaded, ModelArgs, SamplingArgs, note_if_cut, print_piece, tokens};
use crate::cli::output;

/// Options of `generate`.
#[derive(Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    prompts: PromptArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Replies to each prompt, generated together; each has the seed of the one before it plus 1.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
    n: u64,
    #[command(flatten)]
    rewards: RewardArgs,
    /// Print one JSON object per reply.
    #[arg(long)]
    json: bool,
    /// With --json: add the log-probability of every token, and this many of the likeliest tokens at its place, 0 to 20.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=MAX_TOP as u64))]
    logprobs: Option<u64>,
}

/// Prints the reply to each prompt. Each prompt is a separate conversation.
pub fn run(args: &GenerateArgs) -> Result<()> {
    args.sampling.check()?;
    if args.logprobs.is_some() && !args.json {
        bail!("--logprobs prints nothing without --json; add it");
    }
    let texts = args.prompts.texts()?;
    let judge = args.rewards.open(args.n, &args.prompts)?;
    let loaded = Loaded::open(&args.model)?;
    let mut options = args.sampling.options(&loaded.frozen.base);
    options.logprobs = args.logprobs.map(|top| top as usize);
    let prompts = args.prompts.encoded(&texts, &loaded)?;
    judge.as_ref().map_or(Ok(()), |judge| judge.check(&prompts))?;
    let model = loaded.model()?;
    if args.n > 1 || judge.is_some() {
        let form = Form { n: args.n as usize, json: args.json, judge };
        return several::run(form, &args.prompts, &loaded, &model, &options, &prompts);
    }
    let workspace = loaded.workspace(&model)?;
    let mut generator = Generator::new(&workspace, &loaded.frozen.tokenizer, loaded.adapter.as_ref())?;
    for Prompt { value, ids, .. } in &prompts {
        let started = Instant::now();
        let mut first = None;
        let on_event = |event: Event| match event {
            Event::Text(piece) => {
                first.get_or_insert_with(|| started.elapsed());
                if args.json { ControlFlow::Continue(()) } else { print_piece(piece) }
            }
            Event::Prompt(_) | Event::Scores(_) => ControlFlow::Continue(()),
        };
        let reply = block_on(generator.reply(ids, &options, on_event))?;
        if reply.finish == Finish::Cancelled {
            return Ok(()); // stdout is closed
        }
        if !args.json {
            output::text("");
            note_if_cut(&reply, loaded.context());
            continue;
        }
        let prompt_seconds = first.unwrap_or_default().as_secs_f64();
        let decode_seconds = started.elapsed().as_secs_f64() - prompt_seconds;
        let mut object = json!({ "prompt": value });
        tokens::add_reply(&mut object, ids, &reply);
        object["first_token_seconds"] = json!(prompt_seconds);
        object["tokens_per_second"] =
            json!(reply.ids.len().saturating_sub(1) as f64 / decode_seconds.max(1e-9));
        if options.logprobs.is_some() {
            tokens::add_scores(&mut object, &loaded.frozen.tokenizer, &reply);
        }
        output::text(object);
    }
    Ok(())
}
