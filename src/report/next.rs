//! The commands that use the adapter of a run, or resume it.

use super::Report;
use super::text::escape;
use crate::run::Status;

/// The section with the commands; empty in a browser, which has no command line.
pub fn html(report: &Report) -> String {
    if cfg!(target_arch = "wasm32") {
        return String::new();
    }
    let dir = report.recipe.output.dir.display();
    let name = report.recipe.output.dir.file_name().unwrap_or_default().to_string_lossy();
    let base = &report.recipe.model.base;
    let commands = match (report.status, report.kept) {
        (Status::Finished, Some(_)) => vec![
            ("Chat with base and adapter", format!("rullama-train chat {base} --adapter {dir} --compare")),
            ("Bring it into Ollama", format!("rullama-train merge {dir} --base {base} --ollama {name}")),
            (
                "Train it longer",
                format!(
                    "rullama-train {dir}/recipe.resolved.toml --set {} --continue-with-changes",
                    longer(report)
                ),
            ),
        ],
        (Status::Finished, None) => return String::new(),
        _ => vec![("Resume the run, if it has stopped", format!("rullama-train {dir}/recipe.resolved.toml"))],
    };
    let row = |(title, command): &(&str, String)| {
        format!("<div><dt>{title}</dt><dd><code>{}</code></dd></div>", escape(command))
    };
    let rows: String = commands.iter().map(row).collect();
    format!("<h2>Next</h2>\n<dl class=\"card facts\">{rows}</dl>\n")
}

/// The setting of a run twice as long.
fn longer(report: &Report) -> String {
    let train = &report.recipe.train;
    match train.max_steps {
        Some(most) => format!("train.max_steps={}", 2 * most),
        None => format!("train.epochs={}", 2 * train.epochs),
    }
}
