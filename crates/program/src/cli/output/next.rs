//! The exact commands that come next.

use std::path::Path;

use rullama_train::adapter::Format;
use rullama_train::base::Base;

use super::command;
use crate::cli::recipe_args::quoted;

/// The command that chats with an adapter and its base side by side.
pub fn chat(base: &str, adapter: &Path) -> String {
    format!("rullama-train chat {} --adapter {} --compare", quoted(base), path(adapter))
}

/// The command that merges an adapter into its base and creates the model in Ollama.
fn merge(base: &str, adapter: &Path) -> String {
    let name = adapter.file_name().unwrap_or_default().to_string_lossy();
    let name = if name.is_empty() { "mine".into() } else { name };
    format!("rullama-train merge {} --base {} --ollama {}", path(adapter), quoted(base), quoted(&name))
}

/// The command with which llama.cpp runs a GGUF LoRA on the file of its base; `None` for a base within this program.
fn llama(base_file: &str, adapter: &Path) -> Option<String> {
    let exists = Path::new(base_file).is_file();
    exists.then(|| format!("llama-cli -m {} --lora {}", quoted(base_file), path(adapter)))
}

fn path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

/// Prints how to use the adapter of the run in `dir`. `name`: the base as the recipe names it; `exported`: formats of the adapter.
pub fn after_training(name: &str, base: &Base, dir: &Path, exported: &[Format]) {
    let Some(first) = exported.first() else { return };
    let adapter = first.place(dir);
    let of_llama = [Format::GgufLora, Format::GgufLoraF16]
        .into_iter()
        .filter(|format| exported.contains(format))
        .filter_map(|format| llama(base.gguf().file(), &format.place(dir)));
    let all = [chat(name, &adapter)].into_iter().chain(of_llama).chain([merge(name, &adapter)]);
    for (index, text) in all.enumerate() {
        command(if index == 0 { "next" } else { "" }, &text);
    }
}

/// Prints how to use an adapter that was exported to `place`.
pub fn after_export(base: &Base, format: Format, place: &Path) {
    let of_llama = match format {
        Format::GgufLora | Format::GgufLoraF16 => llama(base.gguf().file(), place),
        _ => None,
    };
    command("next", &of_llama.unwrap_or_else(|| chat(base.name(), place)));
}
