//! The GPU, its kernels, and the memory plan.

use rullama_train::gpu::Gpu;
use rullama_train::model::Plan;
use rullama_train::model::plan::Offloaded;

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
    if !plan.offloaded.layers.is_empty() {
        line("offload", offloaded(&plan.offloaded));
    }
}

/// Which experts stay in host memory, and how much of them is copied to the GPU.
pub fn offloaded(offloaded: &Offloaded) -> String {
    let Offloaded { layers, of, bytes: size, training, forward } = offloaded;
    let which = match layers.len() == *of {
        true => format!("all {}", count(*of, "layer")),
        false => {
            let numbers: Vec<String> = layers.iter().map(ToString::to_string).collect();
            format!("{} of {}: {}", layers.len(), count(*of, "layer"), numbers.join(", "))
        }
    };
    let [size, training, forward] = [*size, *training, *forward].map(bytes);
    format!(
        "{size} of experts ({which}) stay in host memory. Copied to the GPU: {training} per training micro-batch, {forward} per \
         evaluation batch or generated token"
    )
}
