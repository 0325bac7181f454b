//! `bench --decode --parallel`: speed of several replies at once, without and with an adapter.

use std::time::Instant;

use anyhow::{Result, bail};
use pollster::block_on;
use rullama_train::adapter::lora::Adapter;
use rullama_train::gpu::Place;
use rullama_train::gpu::profile::KernelTime;
use rullama_train::model::Model;
use rullama_train::model::decode::{Lengths, Sequences, Workspace};
use rullama_train::ops::categorical::Draw;
use rullama_train::talk::generate::CHUNK;
use serde_json::json;

use super::decode::{PROFILED, WARM_UP, adapter, context, per_pass, prompt};
use super::results::{kernels_json, print_kernels};
use super::{BenchArgs, check_sequence, random};
use crate::cli::output::{self, line};

/// The speed of steps.
struct Speed {
    tokens_per_second: f64,
    median_ms: f64,
    bytes: u64,
    /// Time per kernel and step, longest first.
    kernels: Vec<(String, KernelTime)>,
}

/// Times steps of `count` sequences, of `tokens` tokens each after one prompt of random tokens.
pub fn run(args: &BenchArgs, tokens: usize, count: usize) -> Result<()> {
    let base = random::open_base(&args.base)?;
    check_sequence(&base, args.sequence)?;
    let context = context(args, &base, tokens, WARM_UP)?;
    let (adapter, origin) = adapter(args, &base)?;
    let gpu = args.open_gpu(Place::ALONE)?;
    let bar = output::spinner("loading the weights");
    let model = block_on(Model::stream(&gpu, &base, context, |_| ()))?;
    bar.set_message("timing replies");
    let lengths = Lengths { context, chunk: CHUNK };
    let workspace = block_on(Workspace::for_sequences(&gpu, &model, lengths, adapter.rank, count))?;
    let prompt = prompt(args, &base);
    let speed = |adapter: Option<&Adapter>| speed(&workspace, adapter, &prompt, tokens);
    let speeds = [speed(None)?, speed(Some(&adapter))?];
    bar.finish_and_clear();
    if args.json {
        let object = |s: &Speed| {
            let kernels = kernels_json(&s.kernels);
            json!({"tokens_per_second": s.tokens_per_second, "median_ms": s.median_ms, "bytes": s.bytes, "kernels": kernels})
        };
        output::text(json!({
            "device": gpu.description(), "base": base.name(), "adapter": origin, "rank": adapter.rank, "prompt": args.sequence,
            "tokens": tokens, "parallel": count, "without_adapter": object(&speeds[0]), "with_adapter": object(&speeds[1]),
            "workspace_bytes": workspace.bytes(),
        }));
        return Ok(());
    }
    output::device(&gpu);
    line("base", base.name());
    line("adapter", format_args!("{origin}, rank {}", adapter.rank));
    for (label, speed) in ["without", "with"].into_iter().zip(&speeds) {
        let tokens = output::count(tokens, "token");
        line(
            label,
            format_args!(
                "{count} at once, each of {tokens}, at {:.1} tokens/s in all, median {:.3} ms for a token of each",
                speed.tokens_per_second, speed.median_ms
            ),
        );
    }
    line(
        "memory",
        format_args!(
            "{} of keys and values and {} of other buffers, in addition to the weights",
            output::bytes(speeds[0].bytes),
            output::bytes(workspace.bytes())
        ),
    );
    print_kernels(&speeds[1].kernels);
    Ok(())
}

fn speed(workspace: &Workspace, adapter: Option<&Adapter>, prompt: &[u32], tokens: usize) -> Result<Speed> {
    let mut sequences = Sequences::new(workspace, adapter)?;
    for chunk in prompt.chunks(CHUNK) {
        block_on(sequences.append(0, chunk))?;
    }
    let others: Vec<usize> = (1..sequences.count()).collect();
    sequences.copy(0, &others)?;
    // Replies that differ from the first token on.
    let mut next: Vec<(usize, u32)> =
        (0..sequences.count()).map(|of| (of, prompt[of % prompt.len()])).collect();
    let draws = vec![Draw::LIKELIEST; next.len()];
    let mut times = Vec::new();
    for _ in 0..WARM_UP + tokens {
        let started = Instant::now();
        block_on(sequences.step(&next, &draws, workspace.vocab()))?;
        let drawn = block_on(sequences.drawn(next.len()))?;
        times.push(started.elapsed().as_secs_f64());
        for ((of, token), drawn) in next.iter_mut().zip(&drawn) {
            if !drawn.is_sound() {
                bail!("the logits after {} tokens of reply {of} are not finite", sequences.len(*of));
            }
            *token = drawn.id;
        }
    }
    let timed = &mut times[WARM_UP..];
    let all: f64 = timed.iter().sum();
    timed.sort_by(f64::total_cmp);
    Ok(Speed {
        tokens_per_second: (next.len() * tokens) as f64 / all,
        median_ms: 1e3 * timed[timed.len() / 2],
        bytes: sequences.bytes(),
        kernels: if workspace.gpu().can_profile() { profile(workspace, adapter)? } else { Vec::new() },
    })
}

/// Time per kernel and step, of steps after no prompt, longest first.
fn profile(workspace: &Workspace, adapter: Option<&Adapter>) -> Result<Vec<(String, KernelTime)>> {
    workspace.gpu().start_profile();
    // Steps that were recorded before are not timed.
    let mut sequences = Sequences::new(workspace, adapter)?;
    let next: Vec<(usize, u32)> = (0..sequences.count()).map(|of| (of, of as u32)).collect();
    let draws = vec![Draw::LIKELIEST; next.len()];
    for _ in 0..PROFILED {
        block_on(sequences.step(&next, &draws, workspace.vocab()))?;
    }
    Ok(per_pass(block_on(workspace.gpu().finish_profile())?))
}
