//! What a run prints about itself.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use indicatif::ProgressBar;
use rullama_train::adapter::lora::{Adapter, Slot};
use rullama_train::data::batch::{IGNORE, Sample};
use rullama_train::data::dataset::Found;
use rullama_train::data::template::Template;
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::export::{AdapterPath, Exported, Loaded, Written};
use rullama_train::gpu::Gpu;
use rullama_train::model::Plan;
use rullama_train::model::plan::Offloaded;
use rullama_train::recipe::{Recipe, Template as Setting, TrainOn};
use rullama_train::run::{Source, names};
use rullama_train::words;
pub use rullama_train::words::bytes;

use super::session::Session;

/// Text and a line end. Where nobody reads it any more (`| head`), the run goes on without words.
pub fn text(text: impl Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// One labelled line; on a terminal, what is longer than it is wide goes on under its own column.
pub fn line(label: &str, text: impl Display) {
    let text = text.to_string();
    let terminal = console::Term::stdout();
    if !terminal.features().is_attended() {
        return self::text(format_args!("{label:<10} {text}"));
    }
    let label = match label {
        "notice" => console::style(format!("{label:<10}")).yellow(),
        _ => console::style(format!("{label:<10}")).dim(),
    };
    let width = usize::from(terminal.size().1).saturating_sub(LABEL);
    self::text(format_args!("{label} {}", wrapped(&text, width).join(&format!("\n{:LABEL$}", ""))));
}

/// Columns before the text of a labelled line.
const LABEL: usize = 11;

/// Text in lines of at most `width` columns, broken at spaces; a longer word has a line of its own.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                *line += &format!(" {word}")
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

/// Says on a terminal what takes a while.
pub fn wait(what: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let wait = ProgressBar::new_spinner().with_message(what);
    wait.enable_steady_tick(Duration::from_millis(100));
    wait
}

/// A number of things: `1 epoch`, `2 000 tokens`.
pub fn count(n: usize, thing: &str) -> String {
    format!("{} {thing}{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// The device.
pub fn device(gpu: &Gpu) {
    let software =
        if gpu.is_software() { "; a CPU plays the GPU here: slow, but the same numbers" } else { "" };
    line("device", format_args!("{}{software}", gpu.description()));
    let failed =
        gpu.failed_trial().map(|reason| format!("; its cooperative matrices failed a trial: {reason}"));
    line("kernels", format_args!("{}{}", gpu.tier(), failed.unwrap_or_default()));
}

/// Device, base, adapter, data and steps: what a run starts with.
pub fn start(recipe: &Recipe, s: &Session, initial: &Loaded, gpu: &Gpu) {
    device(gpu);
    session(recipe, s, &initial.adapter);
    notices(&initial.notices);
    steps(recipe, s);
}

fn session(recipe: &Recipe, s: &Session, adapter: &Adapter) {
    let (config, data) = (s.frozen.base.config(), &s.prepared.data);
    let (layers, width, vocab) = (config.layers.len(), config.width, grouped(config.vocab));
    let layers = count(layers, "layer");
    line("base", format_args!("{}: {layers}, width {width}, vocabulary {vocab}", s.frozen.base.name()));
    let slots: Vec<Slot> = adapter.pairs.keys().copied().collect();
    let origin = match &recipe.lora.init_from[..] {
        [] => String::new(),
        paths => format!(", from {}", self::adapters(paths)),
    };
    let (rank, alpha, scale) = (adapter.rank, adapter.alpha, adapter.scale());
    let (parameters, modules) = (count(adapter.parameters(), "trainable parameter"), names(&slots));
    let matrices = format!("rank {rank}, alpha {alpha} (scale {scale:.4}) on {modules}");
    line("adapter", format_args!("{parameters}{origin}: {matrices}"));
    line("template", template_and_loss(recipe, s));
    for (number, source) in data.sources.iter().enumerate() {
        if number == SOURCES && data.sources.len() > SOURCES + 1 {
            text(format_args!("           and {}", count(data.sources.len() - SOURCES, "file")));
            break;
        }
        line(if number == 0 { "read" } else { "" }, self::source(source));
    }
    line("data", format_args!("train {}; validation {}", samples(&data.train), samples(&data.validation)));
    notices(&data.notices);
}

/// What the user should know.
pub fn notices(notices: &[impl Display]) {
    for notice in notices {
        line("notice", notice);
    }
}

/// What was exported; the first failure ends the program, after everything else was said.
pub fn written(written: Written) -> anyhow::Result<()> {
    line("effect", format_args!("{}, over {} tokens", written.effect, written.effect.drift.tokens));
    let mut failed = None;
    for (format, result) in written.formats {
        match result {
            Ok(Exported { place, fidelity }) => {
                line(
                    "exported",
                    format_args!("{}: {}, read back: {fidelity}", place.display(), format.name()),
                );
            }
            Err(error) => drop(failed.get_or_insert(error)),
        }
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Adapters with their weights: `runs/a=0.7 + runs/b=0.3`.
pub fn adapters(paths: &[AdapterPath]) -> String {
    paths.iter().map(ToString::to_string).collect::<Vec<_>>().join(" + ")
}

/// What makes text of conversations, as `setting` wanted it.
pub fn template(template: &Template, setting: &Setting) -> String {
    match (template, setting) {
        (Template::BuiltIn(layout), _) => layout.to_string(),
        (Template::Jinja(_), Setting::File(path)) => path.display().to_string(),
        (Template::Jinja(_), _) => "the base file's own".into(),
    }
}

/// The template of a recipe, and what of its text carries loss.
fn template_and_loss(recipe: &Recipe, s: &Session) -> String {
    let from = template(&s.frozen.template, &recipe.data.template);
    let loss = match recipe.data.train_on {
        TrainOn::Assistant => "loss on every answer",
        TrainOn::LastAssistant => "loss on the last answer",
        TrainOn::All => "loss on everything",
    };
    format!("{from}; {loss}")
}

/// Files that are listed before the rest is only counted.
const SOURCES: usize = 12;

/// What a file of samples turned out to be.
fn source(source: &Source) -> String {
    let weight =
        if source.weight == 1.0 { String::new() } else { format!("; each {} times an epoch", source.weight) };
    found(&source.path, &source.found) + &weight
}

/// What a file holds, in one line.
pub fn found(path: &Path, found: &Found) -> String {
    let shapes: Vec<String> =
        found.shapes.iter().map(|(shape, n)| format!("{} {}", grouped(*n), shape.name())).collect();
    let packed = found.compression.map_or(String::new(), |c| format!(" in {}", c.name()));
    format!("{}: {}{packed}, {}", path.display(), found.container.name(), shapes.join(", "))
}

fn samples(samples: &[Sample]) -> String {
    if samples.is_empty() {
        return "none".into();
    }
    let tokens: usize = samples.iter().map(|s| s.ids.len()).sum();
    let loss: usize = samples.iter().map(Sample::loss_tokens).sum();
    let share = 100.0 * loss as f64 / tokens.max(1) as f64;
    let (samples, tokens) = (count(samples.len(), "sample"), count(tokens, "token"));
    format!("{samples}, {tokens}, {share:.0} % carry loss")
}

/// How the samples become steps.
fn steps(recipe: &Recipe, s: &Session) {
    let (t, d) = (&recipe.train, &recipe.data);
    let length = match t.max_steps {
        Some(_) => "max_steps".into(),
        None => count(t.epochs, "epoch"),
    };
    let batch = match d.packing {
        true => format!("{} packed up to {}", count(t.batch_size, "row"), count(d.max_seq_len, "token")),
        false => count(t.batch_size, "sample"),
    };
    let accumulated = match t.gradient_accumulation_steps {
        1 => String::new(),
        n => format!("{n} micro-batches of "),
    };
    let (steps, rate) = (grouped(s.prepared.steps.plans.len()), t.learning_rate);
    line("steps", format_args!("{steps} ({length}), each {accumulated}{batch}; learning rate up to {rate}"));
}

/// The memory plan, purpose by purpose.
pub fn plan(plan: &Plan, detailed: bool) {
    let (tokens, rows) = (count(plan.tokens, "token"), count(plan.head_rows, "token"));
    let total = bytes(plan.total());
    line("memory", format_args!("{total} on the device for {tokens} a pass, logits of {rows} at a time"));
    if detailed {
        for (purpose, size) in plan.bytes.iter().filter(|(_, size)| *size > 0) {
            text(format_args!("           {:>9}  {purpose}", bytes(*size)));
        }
    }
    if !plan.offloaded.layers.is_empty() {
        line("offload", offloaded(&plan.offloaded));
    }
}

/// Which experts stay in host memory, and how much of them is copied.
pub fn offloaded(offloaded: &Offloaded) -> String {
    let Offloaded { layers, of, bytes: size, training, forward } = offloaded;
    let which = match layers.len() == *of {
        true => format!("all {}", count(*of, "layer")),
        false => {
            let numbers: Vec<String> = layers.iter().map(ToString::to_string).collect();
            format!("{} of {} ({})", layers.len(), count(*of, "layer"), numbers.join(", "))
        }
    };
    let [size, training, forward] = [*size, *training, *forward].map(bytes);
    format!(
        "the experts of {which} stay in host memory, {size} of it: {training} are copied to the device in each micro-batch, \
         {forward} in one of an evaluation and for a token of a reply"
    )
}

/// The sample's text with what carries loss between « and ».
pub fn marked(tokenizer: &Tokenizer, sample: &Sample) -> String {
    let colour = std::io::stdout().is_terminal();
    let (open, close) = if colour { ("\x1b[32m«", "»\x1b[0m") } else { ("«", "»") };
    let mut text = String::new();
    let mut start = 0;
    let carries = |t: usize| t > 0 && sample.labels[t] != IGNORE;
    for t in 1..=sample.ids.len() {
        if t == sample.ids.len() || carries(t) != carries(start) {
            let piece = tokenizer.decode(&sample.ids[start..t]);
            text += &if carries(start) { format!("{open}{piece}{close}") } else { piece };
            start = t;
        }
    }
    text
}

/// A time in the units that matter: `45 s`, `12 min 30 s`, `3 h 05 min`.
pub fn duration(time: std::time::Duration) -> String {
    words::duration(time.as_secs() as f64, 0)
}

/// Digits in groups of three.
pub fn grouped(n: usize) -> String {
    words::grouped(n, ' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_spaces() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("one two three", 13), ["one two three"]);
        assert_eq!(wrapped("a loooooong word", 6), ["a", "loooooong", "word"]);
        assert_eq!(wrapped("äöü äöü", 7), ["äöü äöü"]);
        assert_eq!(wrapped("", 7), [""]);
    }
}
