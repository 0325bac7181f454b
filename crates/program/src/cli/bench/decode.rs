//! `bench --decode`: speed of replies without and with an adapter.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use pollster::block_on;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rullama_train::adapter::lora::Adapter;
use rullama_train::base::Base;
use rullama_train::gpu::profile::KernelTime;
use rullama_train::gpu::{Gpu, Place};
use rullama_train::model::Model;
use rullama_train::model::decode::{Decoder, Lengths, Workspace};
use rullama_train::talk::generate::CHUNK;
use serde_json::{Value, json};

use super::results::{kernels_json, print_kernels};
use super::{BenchArgs, check_sequence, random};
use crate::cli::output::{self, line};
use crate::cli::talk;

/// Tokens that are generated before timing starts.
pub(super) const WARM_UP: usize = 4;
/// Tokens whose kernels are timed.
pub(super) const PROFILED: usize = 8;

/// Times the generation of `tokens` tokens after a prompt of random tokens, without and with an adapter.
pub fn run(args: &BenchArgs, tokens: usize) -> Result<()> {
    let base = random::open_base(&args.base)?;
    check_sequence(&base, args.sequence)?;
    let context = context(args, &base, tokens, WARM_UP + PROFILED + 1)?;
    let (adapter, origin) = adapter(args, &base)?;
    let gpu = args.open_gpu(Place::ALONE)?;
    let bar = output::spinner("loading the weights");
    let model = block_on(Model::stream(&gpu, &base, context, |_| ()))?;
    bar.set_message("timing replies");
    let workspace = Workspace::new(&gpu, &model, Lengths { context, chunk: CHUNK }, adapter.rank)?;
    let prompt = prompt(args, &base);
    let decoders = [Decoder::new(&workspace, None)?, Decoder::new(&workspace, Some(&adapter))?];
    let speeds = speeds(&gpu, &workspace, decoders, &prompt, tokens)?;
    bar.finish_and_clear();
    let results = Results {
        args,
        gpu: &gpu,
        base: base.name(),
        origin,
        rank: adapter.rank,
        tokens,
        speeds,
        workspace: workspace.bytes(),
    };
    if args.json {
        output::text(results.json());
    } else {
        results.print();
    }
    Ok(())
}

/// The tokens of a sequence: the prompt, `tokens` that are timed, and `others`. Fails if the base's context has no room for them.
pub(super) fn context(args: &BenchArgs, base: &Base, tokens: usize, others: usize) -> Result<usize> {
    let context = args.sequence + tokens + others;
    let longest = base.config().context_length;
    if tokens == 0 || context > longest {
        let most = (longest + tokens).saturating_sub(context);
        bail!("--decode {tokens}: expected 1 to {most} tokens after a prompt of {}", args.sequence);
    }
    Ok(context)
}

/// A prompt of random tokens.
pub(super) fn prompt(args: &BenchArgs, base: &Base) -> Vec<u32> {
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let vocab = base.config().vocab as u32;
    (0..args.sequence).map(|_| random.random_range(0..vocab)).collect()
}

/// The adapter and a description of it.
pub(super) fn adapter(args: &BenchArgs, base: &Base) -> Result<(Adapter, String)> {
    if args.adapters.is_empty() {
        let adapter = random::adapter(base.config(), &args.modules(), args.rank);
        return Ok((adapter, "random, on every linear layer".into()));
    }
    Ok((talk::read_adapters(&args.adapters, base)?, args.adapters.join(" + ")))
}

/// Everything that was measured.
struct Results<'a> {
    args: &'a BenchArgs,
    gpu: &'a Gpu,
    /// Name of the base.
    base: &'a str,
    /// Description of the adapter.
    origin: String,
    rank: usize,
    /// Generated tokens.
    tokens: usize,
    /// Without and with the adapter.
    speeds: [Speed; 2],
    /// Bytes of the buffers that both share.
    workspace: u64,
}

impl Results<'_> {
    /// For `--json`.
    fn json(&self) -> Value {
        let prompt = self.args.sequence;
        let [base, adapted] = &self.speeds;
        json!({
            "device": self.gpu.description(), "base": self.base, "adapter": self.origin, "rank": self.rank,
            "prompt": prompt, "tokens": self.tokens, "without_adapter": base.json(prompt),
            "with_adapter": adapted.json(prompt), "adapter_costs_percent": self.overhead(),
            "workspace_bytes": self.workspace,
        })
    }

    /// Prints labelled lines.
    fn print(&self) {
        output::device(self.gpu);
        line("base", self.base);
        line("adapter", format_args!("{}, rank {}", self.origin, self.rank));
        let [base, adapted] = &self.speeds;
        for (label, speed) in [("without", base), ("with", adapted)] {
            let prompt = output::count(self.args.sequence, "token");
            let tokens = output::count(self.tokens, "token");
            line(
                label,
                format_args!(
                    "prompt of {prompt} at {:.0} tokens/s; {tokens} at {:.1} tokens/s, median {:.3} ms, {} dispatches per token",
                    self.args.sequence as f64 / speed.prompt_seconds,
                    speed.per_second(),
                    speed.median_ms(),
                    speed.dispatches
                ),
            );
        }
        line("overhead", format_args!("the adapter adds {:.1} % to the time per token", self.overhead()));
        line(
            "memory",
            format_args!(
                "{} of keys and values and {} of other buffers, in addition to the weights",
                output::bytes(base.bytes),
                output::bytes(self.workspace)
            ),
        );
        print_kernels(&adapted.kernels);
    }

    /// Additional time per token with the adapter, in percent.
    fn overhead(&self) -> f64 {
        let [base, adapted] = &self.speeds;
        100.0 * (adapted.median_ms() / base.median_ms() - 1.0)
    }
}

/// The speed of one decoder.
struct Speed {
    prompt_seconds: f64,
    /// Time of each token.
    tokens: Vec<Duration>,
    /// Dispatches per token.
    dispatches: usize,
    /// Time per kernel and token, longest first.
    kernels: Vec<(String, KernelTime)>,
    /// Size of the key-value cache.
    bytes: u64,
}

impl Speed {
    const NONE: Speed =
        Speed { prompt_seconds: 0.0, tokens: Vec::new(), dispatches: 0, kernels: Vec::new(), bytes: 0 };

    fn per_second(&self) -> f64 {
        self.tokens.len() as f64 / self.tokens.iter().sum::<Duration>().as_secs_f64()
    }

    /// Median time per token, which a few slow tokens do not affect.
    fn median_ms(&self) -> f64 {
        let mut sorted = self.tokens.clone();
        sorted.sort();
        1e3 * sorted[sorted.len() / 2].as_secs_f64()
    }

    fn json(&self, prompt: usize) -> Value {
        json!({
            "prompt_tokens_per_second": prompt as f64 / self.prompt_seconds,
            "tokens_per_second": self.per_second(), "median_ms": self.median_ms(),
            "dispatches_per_token": self.dispatches, "bytes": self.bytes,
            "kernels": kernels_json(&self.kernels),
        })
    }
}

/// Times both decoders. They take turns token by token, so that a disturbance affects both.
fn speeds(
    gpu: &Gpu,
    workspace: &Workspace,
    mut decoders: [Decoder; 2],
    prompt: &[u32],
    tokens: usize,
) -> Result<[Speed; 2]> {
    let mut speeds = [const { Speed::NONE }; 2];
    let mut next = [0; 2];
    // Each prompt is read twice: the first time compiles the kernels.
    for i in [0, 1, 0, 1] {
        let started = Instant::now();
        next[i] = read_prompt(&mut decoders[i], prompt, workspace.lengths().chunk)?;
        speeds[i].prompt_seconds = started.elapsed().as_secs_f64();
    }
    for token in 0..WARM_UP + tokens {
        for (i, decoder) in decoders.iter_mut().enumerate() {
            let started = Instant::now();
            next[i] = next_token(decoder, next[i])?;
            speeds[i].tokens.extend((token >= WARM_UP).then(|| started.elapsed()));
        }
    }
    for (i, decoder) in decoders.iter_mut().enumerate() {
        speeds[i].dispatches = decoder.dispatches();
        speeds[i].bytes = decoder.bytes();
        if gpu.can_profile() {
            speeds[i].kernels = profile(gpu, decoder, next[i])?;
        }
    }
    Ok(speeds)
}

/// Starts over with a prompt, and returns the likeliest next token.
fn read_prompt(decoder: &mut Decoder, prompt: &[u32], chunk: usize) -> Result<u32> {
    decoder.rewind(0);
    let chunks: Vec<&[u32]> = prompt.chunks(chunk).collect();
    let (last, before) = chunks.split_last().expect("a prompt has tokens");
    before.iter().try_for_each(|chunk| block_on(decoder.append(chunk)))?;
    Ok(block_on(decoder.likeliest(last))?.index)
}

/// The likeliest token after `token`.
fn next_token(decoder: &mut Decoder, token: u32) -> Result<u32> {
    let likeliest = block_on(decoder.likeliest(&[token]))?;
    if !likeliest.is_finite() {
        bail!("the logits after {} tokens are not finite", decoder.len());
    }
    Ok(likeliest.index)
}

/// Time per kernel and token, longest first.
fn profile(gpu: &Gpu, decoder: &mut Decoder, mut token: u32) -> Result<Vec<(String, KernelTime)>> {
    gpu.start_profile();
    // One more: the first token's commands were recorded before profiling started and are not timed.
    for _ in 0..=PROFILED {
        token = next_token(decoder, token)?;
    }
    Ok(per_pass(block_on(gpu.finish_profile())?))
}

/// Times of [`PROFILED`] passes for one of them, longest first.
pub(super) fn per_pass(times: impl IntoIterator<Item = (String, KernelTime)>) -> Vec<(String, KernelTime)> {
    let of_one = |(name, time): (String, KernelTime)| {
        let time = KernelTime {
            dispatches: time.dispatches / PROFILED,
            seconds: time.seconds / PROFILED as f64,
            bytes: time.bytes / PROFILED as u64,
        };
        (name, time)
    };
    let mut kernels: Vec<_> = times.into_iter().map(of_one).collect();
    kernels.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    kernels
}
