//! The results of timing training steps, as text and JSON.

use rullama_train::gpu::Gpu;
use rullama_train::gpu::profile::KernelTime;
use rullama_train::model::Plan;
use rullama_train::train::StepReport;
use serde_json::{Value, json};

use super::BenchArgs;
use super::groups::Group;
use super::peak::Peak;
use crate::cli::output::{self, line};
use crate::cli::setup::timings::Timings;

/// Everything that was measured.
pub struct Results<'a> {
    pub args: &'a BenchArgs,
    pub gpu: &'a Gpu,
    /// Name of the base.
    pub base: &'a str,
    /// Parameters that are multiplied with each token.
    pub active_parameters: usize,
    pub startup: Timings,
    /// Result of the first step.
    pub first: StepReport,
    /// SHA-256 of the adapter after the timed steps.
    pub digest: String,
    /// Mean time of a step.
    pub seconds: f64,
    pub plan: &'a Plan,
    /// Seconds that a step's copies of experts take when nothing else runs.
    pub copy_seconds: f64,
    /// Floating-point operations of a step's products with frozen matrices.
    pub product_operations: f64,
    pub groups: Vec<Group>,
    /// Time per kernel, longest first.
    pub kernels: Vec<(String, KernelTime)>,
    pub peak: Peak,
}

impl Results<'_> {
    /// Prints a JSON object with `--json`, otherwise labelled lines.
    pub fn show(&self) {
        if self.args.json {
            output::text(self.json());
        } else {
            self.print();
        }
    }

    fn json(&self) -> Value {
        let copies = &self.plan.offloaded;
        let product_seconds: f64 =
            self.groups.iter().filter(|g| g.name == "products").map(|g| g.seconds).sum();
        json!({
            "device": self.gpu.description(), "base": self.base, "batch": self.args.batch,
            "sequence": self.args.sequence, "accumulate": self.args.accumulate, "objective": self.args.objective, "rank": self.args.rank, "loss_share": self.args.loss_share,
            "cooperative_matrices": self.gpu.kernels().matrices().is_some(), "kernel_variant": self.gpu.kernels().tier().to_string(),
            "step_seconds": self.seconds, "tokens_per_second": self.tokens_per_second(),
            "first_loss": self.first.loss, "adapter_digest": self.digest, "start_seconds": self.startup.json(),
            "active_parameters": self.active_parameters, "planned_bytes": self.plan.total(),
            "product_operations": self.product_operations, "product_seconds": product_seconds,
            "dispatches": self.dispatches(), "kernels": kernels_json(&self.kernels), "peak": self.peak.json(),
            "offloaded_layers": copies.on_host.of_layers(), "copied_activation_bytes": copies.saves, "offloaded_bytes": copies.bytes, "copied_bytes": copies.training,
            "copy_seconds": self.copy_seconds, "allocated_bytes": self.gpu.allocated_bytes(),
            "groups": self.groups.iter().map(|g| g.json(&self.peak)).collect::<Vec<_>>(),
        })
    }

    fn print(&self) {
        output::device(self.gpu);
        line("base", self.base);
        line("startup", &self.startup);
        self.print_step();
        self.print_copies();
        self.print_peak();
        print_kernels(&self.kernels);
    }

    fn print_step(&self) {
        let sequence = output::count(self.args.sequence, "token");
        line(
            "step",
            format_args!("{} × {sequence}, rank {}: {:.4} s", self.args.batch, self.args.rank, self.seconds),
        );
        let StepReport { loss, grad_norm, .. } = self.first;
        line("loss", format_args!("{loss:.6} in the first step, gradient norm {grad_norm:.6}"));
        line("speed", format_args!("{:.0} tokens/s", self.tokens_per_second()));
        let active = self.active_parameters as f64;
        // Forward and backward multiply with every matrix once each, two operations per value.
        let rate = 4.0 * active * self.tokens_per_second() / 1e12;
        line(
            "work",
            format_args!(
                "{:.2} billion active parameters per token; {rate:.1} TFLOP/s, not counting attention and recomputation",
                active / 1e9
            ),
        );
        line("memory", format_args!("{} planned", output::bytes(self.plan.total())));
    }

    fn print_copies(&self) {
        let copies = &self.plan.offloaded;
        if let Some(text) = output::offloaded(copies) {
            line("offload", text);
        }
        if copies.training == 0 {
            return;
        }
        let rate = copies.training as f64 / self.copy_seconds;
        line(
            "copies",
            format_args!(
                "{} per step in {:.4} s when nothing else runs ({}/s)",
                output::bytes(copies.training),
                self.copy_seconds,
                output::bytes(rate as u64)
            ),
        );
        if !self.kernels.is_empty() {
            let idle = (self.seconds - self.kernel_seconds()).max(0.0);
            let share = 100.0 * idle / self.seconds;
            line(
                "idle",
                format_args!(
                    "GPU idle for {idle:.4} s per step ({share:.1} %), waiting for copies and the host"
                ),
            );
        }
    }

    fn print_peak(&self) {
        let kind = self.gpu.kernels().matrices().map_or("f32".into(), |matrices| matrices.to_string());
        line(
            "peak",
            format_args!(
                "{:.1} GB/s copied, {:.2} TFLOP/s with {kind}",
                self.peak.bytes / 1e9,
                self.peak.operations / 1e12
            ),
        );
        let total = self.kernel_seconds();
        if !self.kernels.is_empty() {
            line(
                "gpu time",
                format_args!("{total:.4} s in {} dispatches", output::grouped(self.dispatches())),
            );
        }
        for group in &self.groups {
            let (rate, unit, of_peak) = group.rate(&self.peak);
            // The size of the bound buffers is an upper bound of the bytes moved.
            let bound = if group.operations.is_some() { "" } else { "at most " };
            line(
                group.name,
                format_args!(
                    "{:.4} s, {:.1} %, {:.3} µs per token: {bound}{rate:.3} {unit}, {:.0} % of peak",
                    group.seconds,
                    100.0 * group.seconds / total,
                    1e6 * group.seconds / self.tokens() as f64,
                    100.0 * of_peak
                ),
            );
        }
    }

    /// Tokens of a step.
    fn tokens(&self) -> usize {
        self.args.accumulate * self.args.batch * self.args.sequence
    }

    fn tokens_per_second(&self) -> f64 {
        self.tokens() as f64 / self.seconds
    }

    fn kernel_seconds(&self) -> f64 {
        self.kernels.iter().map(|(_, time)| time.seconds).sum()
    }

    fn dispatches(&self) -> usize {
        self.kernels.iter().map(|(_, time)| time.dispatches).sum()
    }
}

/// Prints one line per kernel: time, share, dispatches and name.
pub fn print_kernels(kernels: &[(String, KernelTime)]) {
    let total: f64 = kernels.iter().map(|(_, time)| time.seconds).sum();
    for (name, time) in kernels {
        let share = 100.0 * time.seconds / total;
        let columns = format!("{:11.3} ms  {share:5.1} %  {:5} ×  ", 1e3 * time.seconds, time.dispatches);
        output::row(&columns, name);
    }
}

/// The kernels for `--json`.
pub fn kernels_json(kernels: &[(String, KernelTime)]) -> Value {
    kernels
        .iter()
        .map(|(name, time)| json!({ "kernel": name, "dispatches": time.dispatches, "seconds": time.seconds }))
        .collect()
}
