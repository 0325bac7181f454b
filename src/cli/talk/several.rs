//! `generate --n`: several replies to each prompt, generated together.

use std::ops::ControlFlow;

use anyhow::Result;
use pollster::block_on;
use rullama_train::model::Model;
use rullama_train::talk::generate::{Options, Reply};
use rullama_train::talk::replies::Replies;
use rullama_train::talk::sampling::Sampling;
use serde_json::{Value, json};

use super::{Loaded, note_if_cut, print_piece, tokens};

/// Prints the replies to each prompt, in the order of the prompts and of their seeds.
pub fn run(
    n: usize,
    json: bool,
    loaded: &Loaded,
    model: &Model,
    options: &Options,
    prompts: &[String],
    ids: &[Vec<u32>],
) -> Result<()> {
    if options.sampling.temperature == 0.0 {
        eprintln!("note: without a temperature, the {n} replies to a prompt are the same; set --temperature");
    }
    let longest = ids.iter().map(Vec::len).max().unwrap_or(0);
    let workspace = loaded.workspace_for(model, longest + options.max_new_tokens, n * ids.len())?;
    let mut replies = Replies::new(&workspace, &loaded.frozen.tokenizer, loaded.adapter.as_ref())?;
    let own: Vec<Options> = (0..n as u64)
        .map(|i| {
            let sampling = Sampling { seed: options.sampling.seed.wrapping_add(i), ..options.sampling };
            Options { sampling, ..options.clone() }
        })
        .collect();
    let all: Vec<(&[u32], &Options)> =
        ids.iter().flat_map(|prompt| own.iter().map(move |options| (&prompt[..], options))).collect();
    let mut waiting: Vec<Option<Reply>> = vec![None; all.len()];
    let mut printed = 0;
    let printer = |of: usize, reply: Reply| {
        waiting[of] = Some(reply);
        while let Some(reply) = waiting.get_mut(printed).and_then(Option::take) {
            let (prompt, number) = (printed / n, printed % n);
            printed += 1;
            let flow = match json {
                true => {
                    let object =
                        object(loaded, &prompts[prompt], &ids[prompt], (number, &own[number]), &reply);
                    print_piece(&format!("{object}\n"))
                }
                false => {
                    let flow = print_piece(&format!("--- {} of {n}\n{}\n", number + 1, reply.text));
                    note_if_cut(&reply, loaded.context());
                    flow
                }
            };
            if flow.is_break() {
                return flow; // stdout is closed
            }
        }
        ControlFlow::Continue(())
    };
    block_on(replies.reply(&all, |_, _| ControlFlow::Continue(()), printer))?;
    Ok(())
}

/// For `--json`.
fn object(
    loaded: &Loaded,
    prompt: &str,
    ids: &[u32],
    (number, options): (usize, &Options),
    reply: &Reply,
) -> Value {
    let mut object = json!({ "prompt": prompt, "reply": number, "seed": options.sampling.seed });
    tokens::add_reply(&mut object, ids, reply);
    if options.logprobs.is_some() {
        tokens::add_scores(&mut object, &loaded.frozen.tokenizer, reply);
    }
    object
}
