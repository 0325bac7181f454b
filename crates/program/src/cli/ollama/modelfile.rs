//! The Modelfile of a merged model: what `ollama show --modelfile` prints for its base.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use rullama_train::base::{Base, ollama};
use rullama_train::data::template::{Difference, InOllama, Template};
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::recipe::Template as Setting;
use rullama_train::run;
use rullama_train::{families, files};
use serde_json::Value;

/// The warning about a template that Ollama does not use.
const OWN_WAY: &str =
    "Ollama formats conversations in its own way, not with this run's data.template; the replies may differ";

/// The path of the Modelfile for the GGUF file `out`: `Modelfile` beside it, or, if that is of another file, one with its own name.
pub fn path(out: &Path) -> PathBuf {
    let usual = out.with_file_name("Modelfile");
    match files::read_to_string(&usual) {
        Ok(found) if found.lines().next() != Some(&from(out)) => out.with_extension("Modelfile"),
        _ => usual,
    }
}

/// The first line of a Modelfile.
fn from(out: &Path) -> String {
    format!("FROM ./{}", out.file_name().unwrap_or_default().to_string_lossy())
}

/// Refuses to replace a Modelfile with other contents, unless `force` is set.
pub fn check(out: &Path, base: &Base, force: bool) -> Result<()> {
    let path = path(out);
    match files::read_to_string(&path) {
        Ok(found) if !force && found != text(out, base, &Setting::Auto).0 => bail!(
            "{} exists with other contents; choose another folder for --out, or use --force to replace it",
            path.display()
        ),
        _ => Ok(()),
    }
}

/// Writes the Modelfile for the GGUF file `out`. With it comes a warning if Ollama will write other prompts than `template`, the
/// `data.template` of the training, does.
pub fn write(out: &Path, base: &Base, template: &Setting) -> Result<(PathBuf, Option<String>)> {
    let path = path(out);
    let (text, warning) = text(out, base, template);
    files::write_atomic(&path, text.as_bytes())?;
    Ok((path, warning))
}

fn text(out: &Path, base: &Base, template: &Setting) -> (String, Option<String>) {
    let mut lines = vec![from(out)];
    let chat = if base.is_ollama() { ollama::chat(base.name(), &ollama::stores()) } else { None };
    let chat = chat.unwrap_or_default();
    let usual = matches!(template, Setting::Auto | Setting::BuiltIn(_));
    let mut warning = None;
    if let Some(renderer) = renderer(base, &chat) {
        // Ollama's own code formats the conversation, so the template only passes the prompt on.
        lines.push("TEMPLATE {{ .Prompt }}".into());
        lines.push(format!("RENDERER {renderer}"));
        lines.push(format!("PARSER {}", chat.parser.as_deref().unwrap_or(renderer)));
        warning = match usual {
            false => Some(OWN_WAY.into()),
            true => difference_from_code(base, template, renderer).filter(|_| chat.renderer.is_none()),
        };
    } else if let Some(own) = chat.template.as_ref().filter(|_| usual) {
        lines.push(format!("TEMPLATE {}", quoted(own)));
    } else if let Some((go, difference)) = go_template(base, template) {
        lines.push(format!("TEMPLATE {}", quoted(&go)));
        warning = difference.as_ref().map(difference_of);
    } else {
        warning =
            Some("the Modelfile has no TEMPLATE, as no chat template of the base fits it; add one".into());
    }
    lines.extend(chat.system.iter().map(|system| format!("SYSTEM {}", quoted(system))));
    match &chat.parameters {
        Some(parameters) => lines.extend(parameters.iter().flat_map(|(key, value)| parameter(key, value))),
        None => lines.extend(recommended(base, template)),
    }
    (lines.join("\n") + "\n", warning)
}

/// The Go template that is nearest to the chat template, and where they differ.
fn go_template(base: &Base, template: &Setting) -> Option<(String, Option<Difference>)> {
    let tokenizer = Tokenizer::from_gguf(base.gguf()).ok()?;
    let template = run::template(template, base).ok()?;
    match &template {
        Template::BuiltIn(layout) if layout.tokens.iter().any(|token| tokenizer.id(token).is_none()) => None,
        template => run::ollama::go_template(base, template, &tokenizer),
    }
}

/// The warning about a template of the file that is not what Ollama's code writes.
fn difference_from_code(base: &Base, template: &Setting, renderer: &str) -> Option<String> {
    let tokenizer = Tokenizer::from_gguf(base.gguf()).ok()?;
    let template = run::template(template, base).ok()?;
    let Difference { before, trained, go } = run::ollama::differs_from_layout(base, &template, &tokenizer)?;
    Some(format!(
        "Ollama's {renderer:?}, which the Modelfile names, writes other prompts than the chat template: behind {before:?}, the chat template \
         has {trained:?}, and Ollama will have {go:?}; if Ollama has code for this version of the model, change RENDERER and PARSER and \
         run `ollama create` again"
    ))
}

fn difference_of(found: &Difference) -> String {
    let Difference { before, trained, go } = found;
    format!(
        "TEMPLATE in the Modelfile is the nearest to the chat template, but not the same: behind {before:?}, the chat template has \
         {trained:?}, and Ollama will have {go:?}; change TEMPLATE and run `ollama create` again"
    )
}

/// The code of Ollama that renders conversations, if any does.
fn renderer<'a>(base: &Base, chat: &'a ollama::Chat) -> Option<&'a str> {
    match families::template(base.config()).in_ollama {
        InOllama::Code(name) => Some(chat.renderer.as_deref().unwrap_or(name)),
        InOllama::Template(_) => chat.renderer.as_deref(),
    }
}

/// The stops of the chat template, and the sampling that the model's authors recommend.
fn recommended(base: &Base, template: &Setting) -> Vec<String> {
    let stops = Tokenizer::from_gguf(base.gguf()).ok().zip(run::template(template, base).ok());
    let stops = stops.map(|(tokenizer, template)| families::stops(&template, &tokenizer)).unwrap_or_default();
    let mut lines: Vec<String> = stops.iter().map(|stop| format!("PARAMETER stop {stop:?}")).collect();
    let Some(sampling) = families::recommended_sampling(base) else { return lines };
    lines.push(format!("PARAMETER temperature {}", sampling.temperature));
    if sampling.top_k > 0 {
        lines.push(format!("PARAMETER top_k {}", sampling.top_k));
    }
    if sampling.top_p < 1.0 {
        lines.push(format!("PARAMETER top_p {}", sampling.top_p));
    }
    lines
}

/// A parameter of a model in Ollama's store; a list is one line per item.
fn parameter(key: &str, value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => items.iter().flat_map(|item| parameter(key, item)).collect(),
        value => vec![format!("PARAMETER {key} {value}")],
    }
}

/// A text of several lines.
fn quoted(text: &str) -> String {
    format!("\"\"\"{text}\"\"\"")
}
