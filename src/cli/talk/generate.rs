//! `generate`: replies to prompts from the command line, a file or stdin.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use pollster::block_on;
use rullama_train::run::OpenBase;
use rullama_train::talk::conversation::Conversation;
use rullama_train::talk::generate::{Event, Finish, Generator};
use rullama_train::talk::scores::MAX_TOP;
use serde_json::json;

use super::several;
use super::{Loaded, ModelArgs, SamplingArgs, note_if_cut, note_unwritten, print_piece, tokens};
use crate::cli::output;

/// Options of `generate`.
#[derive(Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Prompt; may be repeated.
    #[arg(long, value_name = "TEXT")]
    prompt: Vec<String>,
    /// File that contains a prompt, or - for stdin; may be repeated.
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Treat every line of the files as a separate prompt.
    #[arg(long)]
    lines: bool,
    /// Continue the prompt as plain text, without the chat template: only <bos> is added, and control tokens in the prompt are parsed.
    #[arg(long, conflicts_with = "system")]
    raw: bool,
    /// System message before each prompt.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Replies to each prompt, generated together; each has the seed of the one before it plus 1.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
    n: u64,
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
    let prompts = prompts(args)?;
    if prompts.is_empty() {
        bail!("no prompt given; use --prompt TEXT or --file FILE");
    }
    let loaded = Loaded::open(&args.model)?;
    let mut options = args.sampling.options(&loaded.frozen.base);
    options.logprobs = args.logprobs.map(|top| top as usize);
    let ids: Vec<Vec<u32>> =
        prompts.iter().map(|p| encode(args, &loaded.frozen, p)).collect::<Result<_>>()?;
    for prompt in &prompts {
        note_unwritten(&loaded, args.system.iter().chain([prompt]).map(String::as_str));
    }
    let model = loaded.model()?;
    if args.n > 1 {
        return several::run(args.n as usize, args.json, &loaded, &model, &options, &prompts, &ids);
    }
    let workspace = loaded.workspace(&model)?;
    let mut generator = Generator::new(&workspace, &loaded.frozen.tokenizer, loaded.adapter.as_ref())?;
    for (prompt, ids) in prompts.iter().zip(&ids) {
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
        let mut object = json!({ "prompt": prompt });
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

fn prompts(args: &GenerateArgs) -> Result<Vec<String>> {
    let mut prompts = args.prompt.clone();
    for path in &args.file {
        let text = match path.to_str() {
            Some("-") => std::io::read_to_string(std::io::stdin()).context("stdin")?,
            _ => std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?,
        };
        match args.lines {
            true => prompts.extend(text.lines().filter(|l| !l.trim().is_empty()).map(str::to_owned)),
            false => prompts.push(text),
        }
    }
    Ok(prompts)
}

fn encode(args: &GenerateArgs, frozen: &OpenBase, prompt: &str) -> Result<Vec<u32>> {
    let tokenizer = &frozen.tokenizer;
    if args.raw {
        return Ok(frozen.continuation(prompt));
    }
    let conversation = Conversation::new(args.system.clone());
    Ok(conversation
        .ask(&frozen.template, tokenizer, prompt)
        .with_context(|| format!("prompt {prompt:?}"))?
        .ids)
}
