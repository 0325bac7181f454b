//! `selftest`: whether this GPU computes right, and how fast, with a block to paste into an issue.

mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use pollster::block_on;
use rullama_train::cases;
use rullama_train::files;
use rullama_train::gpu::{Backend, Gpu, GpuOptions, KernelSetting};
use rullama_train::selftest::model::Golden;
use rullama_train::selftest::speed::{self, Speed};
use rullama_train::selftest::{self, memory};
use serde_json::json;

use super::output::{self, Progress, line, text};
use super::setup::device::Device;

/// Options of `selftest`.
#[derive(Args)]
pub struct SelftestArgs {
    /// Kernels to test, like device.kernels in a recipe: auto, f32, f16 or cooperative.
    #[arg(long, value_name = "KERNELS", default_value = "auto", value_parser = super::kernels)]
    kernels: KernelSetting,
    /// Interface to the GPU, like device.backend in a recipe: auto, cuda, vulkan, metal or dx12.
    #[arg(long, value_name = "BACKEND", default_value = "auto", value_parser = super::backend)]
    backend: Backend,
    /// GPU to test: part of its name.
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    /// File to write for an issue: the device, every kind of kernels that it can run with their checks, margins and speeds, and a short
    /// bench of the tiny base, as one JSON object. With --kernels, and on a software renderer, of one kind alone.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// AdamW steps of each model.
const STEPS: u64 = 10;

/// Checks beside those of operations: compiling, two models, a copy.
const BESIDE: usize = 4;

/// One check and what is wrong, if anything.
struct Outcome {
    name: String,
    wrong: Option<String>,
    /// Largest error as a share of what is allowed, where the check tells it.
    margin: Option<f64>,
    seconds: f64,
}

/// Findings on one kind of kernels.
struct Findings {
    outcomes: Vec<Outcome>,
    /// `None` where measuring failed.
    speed: Option<Speed>,
    copied: usize,
    seconds: f64,
}

/// Tests the device and prints the result. The status is 1 where anything is wrong.
pub fn run(args: &SelftestArgs) -> Result<ExitCode> {
    output::progress::silence(args.json);
    if let Some(file) = &args.report {
        files::check_file(file)?;
    }
    let options = GpuOptions { backend: args.backend, name: args.gpu.clone(), ..GpuOptions::default() };
    let gpu = Device::open_untested(options, args.kernels)?;
    if !args.json {
        output::device(&gpu);
    }
    let spinner = output::spinner("testing");
    let found = test(&gpu, &spinner);
    let written = args.report.as_deref().map(|file| report::write(file, args, &gpu, &found, &spinner));
    spinner.finish_and_clear();
    if args.json {
        text(found.json(&gpu));
    } else {
        found.print(&gpu);
    }
    let others_are_right = written.transpose()?.unwrap_or(true);
    if let Some(file) = args.report.as_deref().filter(|_| !args.json) {
        report::print(file, others_are_right);
    }
    Ok(if found.is_right() && others_are_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tests the kernels of `gpu`.
fn test(gpu: &Gpu, spinner: &Progress) -> Findings {
    let started = Instant::now();
    let copied = if gpu.is_software() { 16 << 20 } else { 64 << 20 };
    let mut outcomes = Vec::new();
    let cases = || cases::of_selftest(gpu);
    let all = cases().count() + BESIDE;
    let mut note = |name: String, test: &dyn Fn() -> Result<Option<f64>, String>| {
        spinner.set_message(format!("check {} of {all}, {name}", outcomes.len() + 1));
        let started = Instant::now();
        let found = test();
        // A device that reported an error would fail every later check.
        let wrong = gpu
            .take_reported()
            .or(found.as_ref().err().cloned())
            .map(|reason| reason.split_whitespace().collect::<Vec<_>>().join(" "));
        let margin = found.ok().flatten();
        outcomes.push(Outcome { name, wrong, margin, seconds: started.elapsed().as_secs_f64() });
    };
    note("kernels: compiled".into(), &|| {
        selftest::compile(gpu, cases()).map(|()| None).map_err(|error| error.to_string())
    });
    for case in cases() {
        let name = format!("{}: {}", case.op, case.name);
        note(name, &|| block_on(selftest::run(gpu, case)).map(Some));
    }
    for (name, golden) in [("dense", Golden::dense as fn() -> Golden), ("mixture", Golden::mixture)] {
        let name = format!("{name} model: gradients, {STEPS} steps");
        note(name, &|| block_on(golden().check(gpu, STEPS)).map(|()| None));
    }
    note(format!("memory: {} copied", output::bytes(copied as u64)), &|| {
        block_on(memory::copy(gpu, copied)).map(|()| None)
    });
    let speed = speed::measure(gpu).ok();
    Findings { outcomes, speed, copied, seconds: started.elapsed().as_secs_f64() }
}

impl Findings {
    fn is_right(&self) -> bool {
        self.wrong().next().is_none()
    }

    fn wrong(&self) -> impl Iterator<Item = (&str, &str)> {
        self.outcomes.iter().filter_map(|outcome| Some((outcome.name.as_str(), outcome.wrong.as_deref()?)))
    }

    fn right(&self) -> usize {
        self.outcomes.len() - self.wrong().count()
    }

    fn speed(&self) -> String {
        self.speed.map_or("not measured".into(), |Speed { operations, attention, bytes }| {
            format!(
                "{:.1} GFLOP/s in a product with Q4_K weights, {:.1} in attention, {:.1} GB/s copied",
                operations / 1e9,
                attention / 1e9,
                bytes / 1e9
            )
        })
    }

    /// One sentence.
    fn verdict(&self, gpu: &Gpu) -> String {
        match self.wrong().count() {
            0 => format!("this GPU computes right with kernels in {}", gpu.kernels()),
            1 => format!("this GPU computes WRONGLY with kernels in {}: 1 check failed", gpu.kernels()),
            n => format!("this GPU computes WRONGLY with kernels in {}: {n} checks failed", gpu.kernels()),
        }
    }

    fn print(&self, gpu: &Gpu) {
        for (name, reason) in self.wrong() {
            line("wrong", format_args!("{name}: {reason}"));
        }
        let checks = output::count(self.outcomes.len(), "check");
        line("checks", format_args!("{} of {checks} right in {:.1} s", self.right(), self.seconds));
        line("speed", self.speed());
        line("result", self.verdict(gpu));
        if !self.is_right() {
            line(
                "next",
                "update the GPU's driver; or choose slower kernels, device.kernels = \"f32\" in the recipe",
            );
        }
        text("\nFor an issue at https://github.com/rullama/rullama-train/issues, copy this:\n");
        text(self.block(gpu));
    }

    /// Markdown to paste into an issue.
    fn block(&self, gpu: &Gpu) -> String {
        let (backend, driver) = gpu.driver();
        let limits = gpu.limits();
        let [least, most] = gpu.subgroup_sizes();
        let mut lines = vec![
            format!("rullama-train {} selftest", env!("CARGO_PKG_VERSION")),
            format!("device   {}", gpu.device_name()),
            format!("backend  {backend}, {}", std::env::consts::OS),
            format!("driver   {driver}"),
            format!("kernels  {}", gpu.kernels()),
            format!(
                "limits   binding {}, buffer {}, workgroup memory {}, {} threads, subgroups {least} to {most}, f16 {}",
                output::bytes(limits.max_storage_buffer_binding_size),
                output::bytes(limits.max_buffer_size),
                output::bytes(u64::from(limits.max_compute_workgroup_storage_size)),
                limits.max_compute_invocations_per_workgroup,
                if gpu.half() { "yes" } else { "no" },
            ),
            format!("checks   {} of {} right, {:.1} s", self.right(), self.outcomes.len(), self.seconds),
            format!("speed    {}", self.speed()),
            format!("result   {}", self.verdict(gpu)),
        ];
        lines.extend(self.wrong().map(|(name, reason)| format!("wrong    {name}: {reason}")));
        format!("```text\n{}\n```", lines.join("\n"))
    }

    fn json(&self, gpu: &Gpu) -> serde_json::Value {
        let checks: Vec<_> = self
            .outcomes
            .iter()
            .map(|outcome| {
                let Outcome { name, wrong, margin, seconds } = outcome;
                json!({ "name": name, "wrong": wrong, "margin": margin, "seconds": seconds })
            })
            .collect();
        let own = json!({
            "kernels": gpu.kernels().to_string(), "right": self.is_right(), "seconds": self.seconds,
            "operations_per_second": self.speed.map(|speed| speed.operations),
            "attention_operations_per_second": self.speed.map(|speed| speed.attention),
            "copy_bytes_per_second": self.speed.map(|speed| speed.bytes), "copied_bytes": self.copied,
            "checks": checks,
        });
        let mut all = device(gpu);
        if let (Some(all), serde_json::Value::Object(own)) = (all.as_object_mut(), own) {
            all.extend(own);
        }
        all
    }
}

/// The device and its limits.
fn device(gpu: &Gpu) -> serde_json::Value {
    let (backend, driver) = gpu.driver();
    let limits = gpu.limits();
    json!({
        "version": env!("CARGO_PKG_VERSION"), "device": gpu.device_name(), "backend": backend, "driver": driver,
        "limits": {
            "binding_bytes": limits.max_storage_buffer_binding_size, "buffer_bytes": limits.max_buffer_size,
            "workgroup_bytes": limits.max_compute_workgroup_storage_size,
            "threads": limits.max_compute_invocations_per_workgroup, "subgroups": gpu.subgroup_sizes(),
            "f16": gpu.half(),
        },
    })
}
