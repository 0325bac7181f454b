//! The GPU, its kernels, and the memory plan.

use rullama_train::gpu::Gpu;
use rullama_train::model::Plan;
use rullama_train::model::plan::{Offloaded, Saves};

use super::{bytes, count, line, text};

/// Prints the GPU and the kernels that it runs.
pub fn device(gpu: &Gpu) {
    let software = if gpu.is_software() { "; software renderer: slow, same results" } else { "" };
    line("device", format_args!("{}{software}", gpu.description()));
    if let Some(note) = gpu.note() {
        line("note", note);
    }
    let failed = gpu
        .failed_self_test()
        .map(|reason| format!("; cooperative matrices disabled, self-test failed: {reason}"));
    line("kernels", format_args!("{}{}", gpu.kernels().tier(), failed.unwrap_or_default()));
}

/// Prints the total of the memory plan; with `detailed`, also one line per purpose.
pub fn plan(plan: &Plan, detailed: bool) {
    let tokens = count(plan.tokens, "token");
    let rows = count(plan.head_rows, "token");
    let total = bytes(plan.total());
    line("memory", format_args!("{total} on the GPU for {tokens} per pass; logits for {rows} at a time"));
    if detailed {
        for (purpose, size) in plan.bytes.iter().filter(|(_, size)| *size > 0) {
            text(format_args!("           {:>9}  {purpose}", bytes(*size)));
        }
    }
    if let Some(text) = offloaded(&plan.offloaded) {
        line("offload", text);
    }
}

/// Describes the contents of host memory, and how much of it is copied to the GPU; `None` if nothing is there.
pub fn offloaded(offloaded: &Offloaded) -> Option<String> {
    let Offloaded { on_host, of, of_layers, bytes: size, training, forward, saves } = offloaded;
    let mut parts = Vec::new();
    if !on_host.experts.is_empty() {
        parts.push(format!("experts of {}", which(&on_host.experts, *of)));
    }
    if !on_host.layers.is_empty() {
        parts.push(format!("matrices of {}", which(&on_host.layers, *of_layers)));
    }
    let mut text = String::new();
    if !parts.is_empty() {
        let [size, training, forward] = [*size, *training, *forward].map(bytes);
        text = format!(
            "{size} stay in host memory: {}. Copied to the GPU: {training} per training micro-batch, {forward} per evaluation batch or \
             generated token",
            parts.join(", ")
        );
    }
    let what = match on_host.saves {
        Saves::None => return (!text.is_empty()).then_some(text),
        Saves::Inputs => "Inputs of layers",
        Saves::Results => "Inputs of layers, results of attention and feed-forward",
    };
    let separator = if text.is_empty() { "" } else { ". " };
    text += &format!("{separator}{what}: {} copied to host memory and back", bytes(*saves));
    Some(text)
}

/// Numbers of layers.
fn which(layers: &[usize], of: usize) -> String {
    if layers.len() == of {
        return format!("all {}", count(of, "layer"));
    }
    let numbers: Vec<String> = layers.iter().map(ToString::to_string).collect();
    format!("{} of {}: {}", layers.len(), count(of, "layer"), numbers.join(", "))
}
