//! The kernels of a step one by one, on every variant that the device has: checked against the f64 reference on small shapes, then timed
//! with timestamp queries on the shapes of gemma4:e2b, or on small shapes on a software renderer.
//!
//! `cargo bench --bench kernels [-- NAME…] [--tokens N]`; a name is a part of `op [variant]`.

mod checks;
#[path = "../../tests/common/gpu.rs"]
mod device;
#[allow(dead_code)] // `json` is for `bench`
#[path = "../../crates/program/src/cli/bench/peak.rs"]
mod peak;
mod timer;
mod work;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use pollster::block_on;
use rullama_train::base::formats::GgmlType;
use rullama_train::cases::step::Step;
use rullama_train::gpu::{Gpu, GpuOptions};
use rullama_train::ops::op::{OPS, Variant};

use checks::check::{self, Outcome};
use checks::{attention, linear, of_table};
use peak::Peak;
use timer::Timer;

/// The benchmark of an op on some of its variants.
struct Bench {
    op: &'static str,
    variants: &'static [Variant],
    checks: &'static [fn(&Gpu) -> Outcome],
    work: fn(&Timer, &Step) -> Result<()>,
}

const fn bench(
    op: &'static str,
    variants: &'static [Variant],
    checks: &'static [fn(&Gpu) -> Outcome],
    work: fn(&Timer, &Step) -> Result<()>,
) -> Bench {
    Bench { op, variants, checks, work }
}

const F32: &[Variant] = &[Variant::F32];
const HALF: &[Variant] = &[Variant::F16, Variant::Coop8];
const ROWS: &[Variant] = &[Variant::F32, Variant::F16, Variant::Coop8];
const COOP16: &[Variant] = &[Variant::Coop16];
const PACKED: &[Variant] = &[Variant::Packed];
const ALL: &[GgmlType] = &GgmlType::SUPPORTED;
const ATTENTION: &[fn(&Gpu) -> Outcome] = &[
    |gpu| attention::forward_and_backward(gpu, &[32, 64, 128, 256, 512]),
    |gpu| check::of_table(gpu, "attention", "large scores"),
];

const BENCHES: [Bench; 17] = [
    bench("linear", F32, &[|gpu| linear::forward(gpu, ALL), |gpu| linear::backward(gpu, ALL)], work::linear),
    bench("linear", HALF, &[|gpu| linear::forward(gpu, ALL), |gpu| linear::backward(gpu, ALL)], work::linear),
    bench(
        "linear",
        COOP16,
        &[|gpu| linear::forward(gpu, ALL), |gpu| linear::backward(gpu, ALL)],
        work::coop_linear,
    ),
    bench(
        "lora",
        F32,
        &[
            |gpu| check::of_table(gpu, "linear", "adapter matrices as weights"),
            |gpu| check::of_table(gpu, "lora", "gradients"),
        ],
        work::lora,
    ),
    bench("lora", COOP16, &[|gpu| check::of_table(gpu, "lora", "gradients apart")], work::coop_lora),
    bench("attention", ROWS, ATTENTION, work::attention),
    bench("attention", COOP16, ATTENTION, work::attention),
    bench("rms_norm", F32, &[|gpu| of_table(gpu, "rms_norm")], work::rms_norm),
    bench(
        "rms_norm",
        PACKED,
        &[|gpu| check::of_table(gpu, "rms_norm", "forward and backward, packed")],
        work::coop_norm,
    ),
    bench("rope", F32, &[|gpu| of_table(gpu, "rope")], work::rope),
    bench(
        "heads",
        PACKED,
        &[
            |gpu| check::of_table(gpu, "heads", "forward and backward"),
            |gpu| check::of_table(gpu, "heads", "backward"),
        ],
        work::coop_heads,
    ),
    bench("gated", F32, &[|gpu| of_table(gpu, "gated")], work::gated),
    bench(
        "gated",
        PACKED,
        &[|gpu| check::of_table(gpu, "gated", "tiles, forward and backward")],
        work::coop_gated,
    ),
    bench("short_conv", F32, &[|gpu| of_table(gpu, "short_conv")], work::short_conv),
    bench("cross_entropy", F32, &[|gpu| of_table(gpu, "cross_entropy")], work::cross_entropy),
    bench(
        "cross_entropy",
        PACKED,
        &[|gpu| check::of_table(gpu, "cross_entropy", "losses, gradients as tiles")],
        work::coop_cross_entropy,
    ),
    bench("adamw", F32, &[|gpu| of_table(gpu, "adamw")], work::adamw),
];

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
    let all = OPS.iter().flat_map(|op| op.variants.iter().map(move |variant| (op.name, *variant)));
    let all = all.flat_map(|(op, variant)| {
        let own = BENCHES.iter().filter(move |bench| bench.op == op && bench.variants.contains(&variant));
        own.map(move |bench| (format!("{op} [{variant}]"), variant, bench))
    });
    let all: Vec<(String, Variant, &Bench)> = all.collect();
    let chosen = |name: &str| names.is_empty() || names.iter().any(|part| name.contains(part.as_str()));
    if tokens == Some(0) || !all.iter().any(|(name, ..)| chosen(name)) {
        let known: Vec<&str> = all.iter().map(|(name, ..)| name.as_str()).collect();
        bail!("nothing to do: names are parts of {}; --tokens starts at 1", known.join(", "));
    }
    let gpu = block_on(Gpu::open(GpuOptions::default()))?;
    let step = Step::of(&gpu, tokens);
    println!("device     {}", gpu.description());
    println!("size       {step}");
    let mut wrong = false;
    for variant in [Variant::F32, Variant::F16, Variant::Coop8, Variant::Packed, Variant::Coop16] {
        let benches: Vec<_> = all.iter().filter(|(name, of, _)| *of == variant && chosen(name)).collect();
        if benches.is_empty() {
            continue;
        }
        let Some(gpu) = device::running(&gpu, variant) else {
            println!("\nThe device has no kernels of the variant {variant}: they are skipped.");
            continue;
        };
        let peak = Peak::measure(&gpu)?;
        println!(
            "\npeaks      {:.1} GB/s copied, {:.2} TFLOP/s in {}",
            peak.bytes / 1e9,
            peak.operations / 1e12,
            gpu.kernels().matrices().map_or("f32".into(), |matrices| matrices.to_string())
        );
        let timer = Timer { gpu: &gpu, peak: &peak };
        for (name, _, bench) in benches {
            println!("\n{name}");
            if let Err(error) = bench.checks.iter().try_for_each(|check| check(&gpu)) {
                println!("WRONG, and not timed: {}", error.message().unwrap_or("no reason is given"));
                wrong = true;
                continue;
            }
            (bench.work)(&timer, &step)?;
        }
    }
    Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
