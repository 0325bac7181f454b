//! The kernels of a step one by one: checked against the f64 reference on small shapes, then timed by the device's own clock on
//! those of gemma4:e2b, or on small ones with a software renderer.
//!
//! `cargo bench --bench kernels [-- NAME…] [--tokens N]`; a name is a part of a group's.

mod checks;
#[allow(dead_code)] // `json` is for `bench`
#[path = "../../src/cli/bench/peak.rs"]
mod peak;
mod work;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use pollster::block_on;
use rullama_train::gpu::profile::KernelTime;
use rullama_train::gpu::{Backend, Gpu, Recorder, Tier};

use checks::check::Outcome;
use checks::{adamw, attention, coop, cross_entropy, elementwise, half, linear, lora, rms_norm};
use peak::Peak;
use work::{Size, Timed};

/// Kernels that one test checks.
struct Group {
    name: &'static str,
    /// Whether they run on cooperative matrices.
    cooperative: bool,
    checks: &'static [fn(&Gpu) -> Outcome],
    work: fn(&'static Gpu, &Size) -> Result<Vec<Timed>>,
}

const fn group(
    name: &'static str,
    cooperative: bool,
    checks: &'static [fn(&Gpu) -> Outcome],
    work: fn(&'static Gpu, &Size) -> Result<Vec<Timed>>,
) -> Group {
    Group { name, cooperative, checks, work }
}

const GROUPS: [Group; 15] = [
    group("linear", false, &[linear::forward, linear::backward], work::linear),
    group("lora", false, &[linear::adapter_products, lora::gradient], work::lora),
    group("attention", false, &[attention::forward_and_backward, attention::large_scores], work::attention),
    group("rms_norm", false, &[rms_norm::forward, rms_norm::backward], work::rms_norm),
    group("rope", false, &[elementwise::rope_both_ways], work::rope),
    group("geglu", false, &[elementwise::geglu_both_ways], work::geglu),
    group("cross_entropy", false, &[cross_entropy::forward, cross_entropy::backward], work::cross_entropy),
    group("adamw", false, &[adamw::ten_steps], work::adamw),
    group("coop_linear", true, &[coop::forward, coop::backward], work::coop_linear),
    group("coop_lora", true, &[coop::adapter], work::coop_lora),
    group(
        "coop_attention",
        true,
        &[attention::forward_and_backward, attention::large_scores],
        work::coop_attention,
    ),
    group("coop_norm", true, &[half::norms], work::coop_norm),
    group("coop_heads", true, &[half::heads, half::heads_backward], work::coop_heads),
    group("coop_geglu", true, &[half::geglu], work::coop_geglu),
    group("coop_cross_entropy", true, &[half::cross_entropy], work::coop_cross_entropy),
];

/// How often each is timed; the best counts.
const TRIES: usize = 3;
/// A try goes on for about so long.
const SECONDS: f64 = 0.02;

fn main() -> Result<ExitCode> {
    let (mut names, mut tokens) = (Vec::new(), None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => {} // cargo's
            "--tokens" => {
                let number = arguments.next().context("--tokens wants a number")?;
                tokens = Some(number.parse::<usize>().with_context(|| format!("--tokens {number}"))?);
            }
            option if option.starts_with('-') => bail!("{option}: expected parts of names, or --tokens N"),
            name => names.push(name.to_string()),
        }
    }
    let chosen: Vec<&Group> = GROUPS
        .iter()
        .filter(|g| names.is_empty() || names.iter().any(|n| g.name.contains(n.as_str())))
        .collect();
    if chosen.is_empty() || tokens == Some(0) {
        let known = GROUPS.map(|group| group.name).join(", ");
        bail!("nothing to do: names are parts of {known}; --tokens starts at 1");
    }
    // Kernels keep what they read for as long as they may run.
    let gpu: &'static Gpu = Box::leak(Box::new(block_on(Gpu::open(Backend::Auto, None, false))?));
    let size = Size::of(gpu, tokens);
    println!("device     {}", gpu.description());
    println!("size       {size}");
    let cooperative = gpu.has_tier(Tier::Cooperative);
    let mut wrong = false;
    for tier in [false, true] {
        let groups = || chosen.iter().filter(|group| group.cooperative == tier);
        if groups().next().is_none() {
            continue;
        }
        if tier && !cooperative {
            println!(
                "\nThe device has no cooperative matrices of the size that the kernels take: theirs are left out."
            );
            continue;
        }
        gpu.set_tier(if tier { Tier::Cooperative } else { Tier::F32 });
        let peak = Peak::measure(gpu)?;
        println!(
            "\npeak       {:.1} GB/s copied, {:.2} TFLOP/s {}",
            peak.bytes / 1e9,
            peak.operations / 1e12,
            if tier { "on cooperative matrices" } else { "in f32" }
        );
        for group in groups() {
            println!("\n{}", group.name);
            if let Err(error) = group.checks.iter().try_for_each(|check| check(gpu)) {
                println!("WRONG, and not timed: {}", error.message().unwrap_or("no reason is given"));
                wrong = true;
                continue;
            }
            for timed in (group.work)(gpu, &size)? {
                time(gpu, &timed, &peak)?;
            }
        }
    }
    Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Times a piece of work, and says what each of its kernels takes of one run.
fn time(gpu: &'static Gpu, timed: &Timed, peak: &Peak) -> Result<()> {
    println!("  {}", timed.name);
    if !gpu.can_profile() {
        println!("    the device has no timestamps");
        return Ok(());
    }
    // The first run compiles.
    profile(gpu, timed, 1)?;
    let mut best = profile(gpu, timed, 1)?;
    let once: f64 = best.iter().map(|(_, t)| t.seconds).sum();
    let repeat =
        if gpu.is_software() { 1 } else { (SECONDS / once.max(1e-6)).ceil().clamp(1.0, 200.0) as usize };
    for _ in 0..TRIES {
        for (best, (_, time)) in best.iter_mut().zip(profile(gpu, timed, repeat)?) {
            if time.seconds < best.1.seconds {
                best.1 = time;
            }
        }
    }
    for (kernel, KernelTime { seconds, bytes, .. }) in best {
        // A CPU that plays a GPU has kernels of its own.
        let name = kernel.trim_start_matches("simd_");
        let operations = timed.operations.iter().find(|(of, _)| name.starts_with(of));
        let (rate, unit, share) = match operations {
            Some((_, operations)) => {
                let rate = operations / seconds;
                (rate / 1e12, "TFLOP/s", rate / peak.operations)
            }
            // Of the buffers, which a kernel need not read to the end.
            None => {
                let rate = bytes as f64 / seconds;
                (rate / 1e9, "GB/s at most", rate / peak.bytes)
            }
        };
        let (ms, percent) = (1e3 * seconds, 100.0 * share);
        println!("    {ms:10.4} ms  {rate:9.3} {unit:12}  {percent:4.0} % of peak  {kernel}");
    }
    Ok(())
}

/// Seconds and bytes by kernel of one of `repeat` runs.
fn profile(gpu: &'static Gpu, timed: &Timed, repeat: usize) -> Result<Vec<(String, KernelTime)>> {
    gpu.start_profile();
    let mut rec = Recorder::new(gpu);
    (0..repeat).for_each(|_| (timed.work)(&mut rec));
    rec.submit()?;
    let of_one = |(kernel, time): (String, KernelTime)| {
        let (seconds, bytes) = (time.seconds / repeat as f64, time.bytes / repeat as u64);
        (kernel, KernelTime { seconds, bytes, ..time })
    };
    Ok(block_on(gpu.finish_profile())?.into_iter().map(of_one).collect())
}
