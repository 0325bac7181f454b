//! The file that `selftest --report` writes, for people who have a GPU that the project has not: docs/gpus.md is made from such files.

use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result};
use rullama_train::files;
use rullama_train::gpu::{Gpu, KernelSetting, Kernels, Tier};
use rullama_train::report::date;
use serde_json::{Value, json};

use super::{Findings, SelftestArgs, device, test};
use crate::cli::message;
use crate::cli::output::{Progress, line};

/// Address of the form for reports.
const ISSUES: &str = "https://github.com/rullama/rullama-train/issues/new?template=gpu.yml";
/// Version of the file's layout.
const LAYOUT: u32 = 1;

/// Tests every other kind of kernels, runs a bench, and writes `file`. Returns whether all that was tested here computes right.
///
/// # Errors
/// The file cannot be written.
pub fn write(
    file: &Path,
    args: &SelftestArgs,
    gpu: &Gpu,
    own: &Findings,
    spinner: &Progress,
) -> Result<bool> {
    let mut right = true;
    let mut variants = vec![variant(gpu, own)];
    for kernels in others(args, gpu) {
        let gpu = gpu.with_kernels(kernels);
        let found = test(&gpu, spinner);
        right &= found.is_right();
        variants.push(variant(&gpu, &found));
    }
    spinner.set_message("bench of the tiny base");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut report = device(gpu);
    report["layout"] = LAYOUT.into();
    report["date"] = date(now.as_secs_f64()).split(' ').next().into();
    report["os"] = json!({ "name": std::env::consts::OS, "cpu": std::env::consts::ARCH });
    report["software"] = gpu.is_software().into();
    report["chosen"] = gpu.kernels().to_string().into();
    report["variants"] = variants.into();
    report["bench"] = bench(args).unwrap_or_else(|error| json!({ "error": message(&error) }));
    let text = format!("{report:#}\n");
    files::write_atomic(file, text.as_bytes())?;
    Ok(right)
}

/// Prints where the report is, and where it is wanted.
pub fn print(file: &Path, others_are_right: bool) {
    line("report", file.display());
    if !others_are_right {
        line("notice", "other kernels than those above compute wrongly: the report has which");
    }
    line("next", format_args!("attach the report to {ISSUES}"));
}

/// Kernels that the device supports beside its own, the fastest first. A software renderer compiles each kind for minutes, and has no driver
/// of a GPU that could be wrong: its own are enough.
fn others(args: &SelftestArgs, gpu: &Gpu) -> Vec<Kernels> {
    let mut all: Vec<Kernels> = Vec::new();
    if args.kernels == KernelSetting::Auto && !gpu.is_software() {
        let tiers = [Tier::Coop16, Tier::Coop8, Tier::F16, Tier::F32];
        let supported = tiers.into_iter().filter_map(|tier| gpu.kernels_of(tier));
        for kernels in gpu.all_kernels().into_iter().chain(supported) {
            if kernels != gpu.kernels() && !all.contains(&kernels) {
                all.push(kernels);
            }
        }
    }
    all
}

/// Findings without what is alike for all kernels.
fn variant(gpu: &Gpu, found: &Findings) -> Value {
    let mut all = found.json(gpu);
    if let (Some(all), Some(shared)) = (all.as_object_mut(), device(gpu).as_object()) {
        all.retain(|name, _| !shared.contains_key(name));
    }
    all
}

/// The figures of `bench tiny`, which runs in a process of its own: a driver that crashes ends that alone.
fn bench(args: &SelftestArgs) -> Result<Value> {
    let program = std::env::current_exe().context("the program does not find itself")?;
    let mut command = Command::new(program);
    command.args(["bench", "tiny", "--sequence", "256", "--json"]);
    let name = |value: Value| value.as_str().unwrap_or_default().to_string();
    command.args(["--kernels", &name(serde_json::to_value(args.kernels)?)]);
    command.args(["--backend", &name(serde_json::to_value(args.backend)?)]);
    if let Some(gpu) = &args.gpu {
        command.args(["--gpu", gpu]);
    }
    let output = command.output().context("the bench does not start")?;
    let told = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "the bench ended with {}: {}", output.status, told.trim());
    serde_json::from_slice(&output.stdout).context("the bench printed no JSON")
}
