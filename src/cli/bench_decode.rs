//! Speed of replies: a prompt of random tokens, then one token after the other, of the base and with an adapter.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use pollster::block_on;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rullama_train::adapter::lora::Adapter;
use rullama_train::gpu::Gpu;
use rullama_train::gpu::profile::KernelTime;
use rullama_train::model::Model;
use rullama_train::model::decode::{Decoder, Lengths, Workspace};
use rullama_train::talk::generate::CHUNK;
use serde_json::{Value, json};

use super::show;

/// Tokens before the clock starts.
const WARM_UP: usize = 4;
/// Tokens whose kernels are timed.
const PROFILED: usize = 8;

/// What one of the two took.
struct Speed {
    prompt_seconds: f64,
    /// Of every token.
    tokens: Vec<Duration>,
    dispatches: usize,
    /// By kernel, of one token.
    kernels: Vec<(String, KernelTime)>,
    bytes: u64,
}

impl Speed {
    const NONE: Speed =
        Speed { prompt_seconds: 0.0, tokens: Vec::new(), dispatches: 0, kernels: Vec::new(), bytes: 0 };

    fn per_second(&self) -> f64 {
        self.tokens.len() as f64 / self.tokens.iter().sum::<Duration>().as_secs_f64()
    }

    /// Of the tokens: a disturbance of a few shows in the mean alone.
    fn median_ms(&self) -> f64 {
        let mut sorted = self.tokens.clone();
        sorted.sort();
        1e3 * sorted[sorted.len() / 2].as_secs_f64()
    }

    fn json(&self, prompt: usize) -> Value {
        let kernel = |(name, t): &(String, KernelTime)| json!({ "kernel": name, "dispatches": t.dispatches, "seconds": t.seconds });
        json!({
            "prompt_tokens_per_second": prompt as f64 / self.prompt_seconds,
            "tokens_per_second": self.per_second(), "median_ms": self.median_ms(),
            "dispatches_per_token": self.dispatches, "bytes": self.bytes,
            "kernels": self.kernels.iter().map(kernel).collect::<Vec<_>>(),
        })
    }
}

/// Tokens positions that [`run`] needs beside the prompt's.
pub fn positions(tokens: usize) -> usize {
    WARM_UP + tokens + PROFILED + 1
}

/// Times `tokens` tokens behind a prompt of `prompt`, of the base and with `adapter`, and prints both.
pub fn run(
    gpu: &Gpu,
    model: &Model,
    name: &str,
    adapter: &Adapter,
    origin: &str,
    prompt: usize,
    tokens: usize,
    as_json: bool,
) -> Result<()> {
    let lengths = Lengths { context: prompt + positions(tokens), chunk: CHUNK };
    let workspace = Workspace::new(gpu, model, lengths, adapter.rank)?;
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let vocab = model.config().vocab as u32;
    let ids: Vec<u32> = (0..prompt).map(|_| random.random_range(0..vocab)).collect();
    let [base, adapted] = [None, Some(adapter)].map(|adapter| Decoder::new(&workspace, adapter));
    let [base, adapted] = speeds(gpu, &workspace, [base?, adapted?], &ids, tokens)?;
    let more = 100.0 * (adapted.median_ms() / base.median_ms() - 1.0);
    if as_json {
        show::text(json!({
            "device": gpu.description(), "base": name, "adapter": origin, "rank": adapter.rank, "prompt": prompt,
            "tokens": tokens, "of_base": base.json(prompt), "with_adapter": adapted.json(prompt),
            "adapter_costs_percent": more, "workspace_bytes": workspace.bytes(),
        }));
        return Ok(());
    }
    show::device(gpu);
    show::line("base", name);
    show::line("adapter", format_args!("{origin}, rank {}", adapter.rank));
    for (label, speed) in [("of base", &base), ("adapted", &adapted)] {
        let prompted = prompt as f64 / speed.prompt_seconds;
        let (per_second, median, dispatches) = (speed.per_second(), speed.median_ms(), speed.dispatches);
        let (prompt, tokens) = (show::count(prompt, "token"), show::count(tokens, "token"));
        show::line(
            label,
            format_args!(
                "prompt of {prompt} {prompted:.0} tokens/s; {tokens} {per_second:.1} tokens/s, median \
                 {median:.3} ms, {dispatches} dispatches each"
            ),
        );
    }
    show::line("adapter", format_args!("costs {more:.1} % more time a token"));
    let (caches, shared) = (show::bytes(base.bytes), show::bytes(workspace.bytes()));
    show::line(
        "memory",
        format_args!("{caches} of keys and values, {shared} of buffers, beside the weights"),
    );
    let total: f64 = adapted.kernels.iter().map(|(_, t)| t.seconds).sum();
    for (name, t) in &adapted.kernels {
        let (ms, share) = (1e3 * t.seconds, 100.0 * t.seconds / total);
        show::text(format_args!("{ms:11.3} ms  {share:5.1} %  {:5} ×  {name}", t.dispatches));
    }
    Ok(())
}

/// Both take turns, token by token: what disturbs one disturbs the other.
fn speeds(
    gpu: &Gpu,
    workspace: &Workspace,
    mut decoders: [Decoder; 2],
    prompt: &[u32],
    tokens: usize,
) -> Result<[Speed; 2]> {
    let mut speeds = [const { Speed::NONE }; 2];
    let mut next = [0; 2];
    // Twice: the first time compiles the kernels.
    for i in [0, 1, 0, 1] {
        let decoder = &mut decoders[i];
        decoder.rewind(0);
        let started = Instant::now();
        let chunks: Vec<&[u32]> = prompt.chunks(workspace.lengths().chunk).collect();
        let (last, before) = chunks.split_last().expect("a prompt has tokens");
        before.iter().try_for_each(|chunk| block_on(decoder.append(chunk)))?;
        next[i] = block_on(decoder.likeliest(last))?.index;
        speeds[i].prompt_seconds = started.elapsed().as_secs_f64();
    }
    let mut step = |decoder: &mut Decoder, i: usize| -> Result<Duration> {
        let started = Instant::now();
        let likeliest = block_on(decoder.likeliest(&[next[i]]))?;
        if !likeliest.is_finite() {
            bail!("the logits after {} tokens are not finite", decoder.len());
        }
        next[i] = likeliest.index;
        Ok(started.elapsed())
    };
    for token in 0..WARM_UP + tokens {
        for (i, decoder) in decoders.iter_mut().enumerate() {
            let time = step(decoder, i)?;
            speeds[i].tokens.extend((token >= WARM_UP).then_some(time));
        }
    }
    for (i, decoder) in decoders.iter_mut().enumerate() {
        speeds[i].dispatches = decoder.dispatches();
        speeds[i].bytes = decoder.bytes();
        if !gpu.can_profile() {
            continue;
        }
        gpu.start_profile();
        // The first token's commands were made before and are not timed.
        for _ in 0..=PROFILED {
            step(decoder, i)?;
        }
        let of_one = |(name, t): (String, KernelTime)| {
            let dispatches = t.dispatches / PROFILED;
            (
                name,
                KernelTime {
                    dispatches,
                    seconds: t.seconds / PROFILED as f64,
                    bytes: t.bytes / PROFILED as u64,
                },
            )
        };
        speeds[i].kernels = block_on(gpu.finish_profile())?.into_iter().map(of_one).collect();
        speeds[i].kernels.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    }
    Ok(speeds)
}
