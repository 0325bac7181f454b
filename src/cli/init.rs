//! A first recipe: what it names is asked for, or given as flags; what it sets follows from the samples.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use rullama_train::data::batch::Sample;
use rullama_train::files;
use rullama_train::recipe::{Recipe, Syntax, Template};
use rullama_train::run::OpenBase;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use super::inspect::read_samples;
use super::{describe, models, show};

/// What the recipe is to say; what is missing is asked for on a terminal.
#[derive(Args)]
pub struct InitArgs {
    /// The recipe to write.
    #[arg(default_value = "recipe.toml")]
    recipe: PathBuf,
    /// What `model.base` takes: an Ollama tag, the path of a .gguf, or tiny.
    #[arg(long)]
    base: Option<String>,
    /// Samples: a file, a folder, or a pattern.
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// The folder that the run writes; unset, runs/ and the recipe's name.
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// A question that is answered before and after training; may be given several times.
    #[arg(long, value_name = "TEXT")]
    prompt: Vec<String>,
    /// Replace a recipe that is there already.
    #[arg(long)]
    force: bool,
}

/// Asks, reads the samples, and writes the recipe.
pub fn run(args: &InitArgs) -> Result<()> {
    let path = &args.recipe;
    if path.extension().is_none_or(|e| e != "toml") {
        bail!("{}: a recipe is written as TOML; choose a name that ends in .toml", path.display());
    }
    if path.exists() && !args.force {
        bail!("{} is there already; choose another name, or replace it with --force", path.display());
    }
    files::check_file(path)?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut asker = Asker::new()?;
    let base = asker.base(args.base.as_deref())?;
    let frozen = OpenBase::named(&base, &Template::Auto)?;
    let data = match &args.data {
        Some(data) => data.clone(),
        None => asker.ask("Samples (a file, a folder, or a pattern)", None, "--data PATH")?.into(),
    };
    let samples = read_samples(&data, &frozen)?;
    describe::lengths(&samples);
    let output = match &args.output {
        Some(output) => output.clone(),
        None => asker.ask("Output folder", Some(&format!("runs/{stem}")), "--output DIR")?.into(),
    };
    let mut prompts = args.prompt.clone();
    if prompts.is_empty() && asker.editor.is_some() {
        let prompt =
            asker.ask("A question to try before and after training (empty: none)", Some(""), "--prompt")?;
        prompts.extend(Some(prompt).filter(|prompt| !prompt.is_empty()));
    }
    let text = recipe(path, &base, &data, &output, &prompts, &Fit::of(&samples, &frozen));
    let name = path.display().to_string();
    // What we write is held to the same rules as what anybody writes.
    Recipe::parse::<&str>(&text, Syntax::Toml, &name, &[])?;
    files::write_atomic(path, text.as_bytes())?;
    show::line("written", &name);
    show::line("next", format_args!("rullama-train check {name}; rullama-train {name}"));
    Ok(())
}

/// Asks on a terminal; elsewhere takes what has a default, and names the flag of what has none.
struct Asker {
    editor: Option<DefaultEditor>,
}

impl Asker {
    fn new() -> Result<Asker> {
        let can_ask = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        Ok(Asker { editor: can_ask.then(DefaultEditor::new).transpose()? })
    }

    fn ask(&mut self, question: &str, default: Option<&str>, flag: &str) -> Result<String> {
        let Some(editor) = &mut self.editor else {
            return default.map(str::to_owned).with_context(|| {
                format!("{flag} is missing, and there is no terminal to ask for it on; expected {question}")
            });
        };
        let hint = default.filter(|d| !d.is_empty()).map_or(String::new(), |default| format!(" [{default}]"));
        loop {
            match editor.readline(&format!("{question}{hint}: ")) {
                Ok(answer) if !answer.trim().is_empty() => return Ok(answer.trim().to_owned()),
                Ok(_) => {
                    if let Some(default) = default {
                        return Ok(default.to_owned());
                    }
                }
                Err(ReadlineError::Interrupted | ReadlineError::Eof) => bail!("nothing was written"),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The base, chosen by number or name of those that are here.
    fn base(&mut self, given: Option<&str>) -> Result<String> {
        if let Some(given) = given {
            return Ok(given.to_owned());
        }
        if self.editor.is_none() {
            bail!(
                "--base BASE is missing, and there is no terminal to ask for it on; expected one of {}",
                models::trainable().join(", ")
            );
        }
        let here = models::trainable();
        for (number, name) in here.iter().enumerate() {
            show::text(format_args!("  {}  {name}", number + 1));
        }
        let answer =
            self.ask("Base (a number, an Ollama tag, or the path of a .gguf)", Some("1"), "--base BASE")?;
        let chosen = answer.parse::<usize>().ok().and_then(|number| here.get(number.wrapping_sub(1)));
        Ok(chosen.cloned().unwrap_or(answer))
    }
}

/// What follows from the samples and the base.
struct Fit {
    samples: usize,
    tokens: usize,
    longest: usize,
    max_seq_len: usize,
    /// Samples that are longer.
    overlong: usize,
    accumulation: usize,
    epochs: usize,
    val_size: &'static str,
    learning_rate: &'static str,
    tiny: bool,
}

/// Rows of a step hold about so many tokens.
const STEP_TOKENS: usize = 4096;
/// A run has as many steps as this, where its samples allow it.
const LEAST_STEPS: usize = 30;
/// Longer rows than this cost more memory than most GPUs can spare; the user may ask for more.
const LONGEST_ROW: usize = 2048;

impl Fit {
    fn of(samples: &[Sample], frozen: &OpenBase) -> Fit {
        let mut lengths: Vec<usize> = samples.iter().map(|sample| sample.ids.len()).collect();
        lengths.sort_unstable();
        let (longest, median) = (lengths[lengths.len() - 1], lengths[lengths.len() / 2]);
        let context = frozen.base.config().context_length;
        let (tokens, epochs) = (lengths.iter().sum::<usize>(), 3);
        let tiny = frozen.base.name() == "tiny";
        // Rows are packed full where they hold several samples, and a few dozen steps are the least that a schedule makes
        // sense of.
        let row = longest.max((8 * median).min(epochs * tokens / LEAST_STEPS));
        let max_seq_len = row.next_power_of_two().clamp(256, LONGEST_ROW).min(context);
        let most = (epochs * tokens / (LEAST_STEPS * max_seq_len)).max(1);
        let accumulation = if tiny { 1 } else { (STEP_TOKENS / max_seq_len).clamp(1, most) };
        let val_size = match samples.len() {
            0..=9 => "0",
            10..=199 => "0.1",
            200..=9999 => "0.05",
            _ => "500",
        };
        Fit {
            samples: samples.len(),
            tokens,
            longest,
            max_seq_len,
            overlong: lengths.len() - lengths.partition_point(|&length| length <= max_seq_len),
            accumulation,
            epochs,
            val_size,
            learning_rate: if tiny { "4e-3" } else { "1e-4" },
            tiny,
        }
    }

    /// About how many steps the run has.
    fn steps(&self) -> usize {
        (self.epochs * self.tokens).div_ceil(self.accumulation * self.max_seq_len).max(1)
    }
}

/// The recipe's text.
fn recipe(path: &Path, base: &str, data: &Path, output: &Path, prompts: &[String], fit: &Fit) -> String {
    let quoted = |text: &str| toml::Value::String(text.into()).to_string();
    let path_of = |path: &Path| quoted(&path.to_string_lossy());
    let prompts: Vec<String> = prompts.iter().map(|prompt| quoted(prompt)).collect();
    let (samples, tokens) = (show::count(fit.samples, "sample"), show::count(fit.tokens, "token"));
    let longest = show::count(fit.longest, "token");
    let (overlong, says) = match fit.overlong {
        0 => ("error", "none is longer; \"drop\" or \"truncate\" would allow it".to_string()),
        n => (
            "drop",
            format!("leaves out what is longer, {}; \"truncate\" cuts the ends", show::count(n, "sample")),
        ),
    };
    let rate = match fit.tiny {
        true => "a base as small as tiny takes a high one",
        false => "from 1e-5 for large bases to 3e-4 for small ones",
    };
    let (steps, name) = (fit.steps(), path.display());
    let mut text = format!(
        "# {samples} of {tokens}, the longest of {longest}; about {}.\n#\n\
         #   rullama-train check {name}    # everything up to the first step: lengths, memory, a sample with its loss\n\
         #   rullama-train {name}          # trains; the same command goes on where a run was stopped\n#\n\
         # recipes/chat.toml of rullama-train explains every key, also those that are not here.\n",
        show::count(steps, "step")
    );
    let mut section = "";
    for (key, value, comment) in [
        ("model.base", quoted(base), ""),
        ("lora.rank", "16".into(), "higher learns more, and costs memory and time"),
        ("data.train", path_of(data), ""),
        ("data.val_size", fit.val_size.into(), "kept aside to measure on: a fraction, or a count"),
        ("data.train_on", quoted("assistant"), "what carries loss; or \"last_assistant\", \"all\""),
        (
            "data.max_seq_len",
            fit.max_seq_len.to_string(),
            "most tokens in a row; samples are packed into rows",
        ),
        ("data.overlong", quoted(overlong), &says),
        ("train.epochs", fit.epochs.to_string(), "passes over the samples"),
        ("train.gradient_accumulation_steps", fit.accumulation.to_string(), "rows in a step"),
        ("train.learning_rate", fit.learning_rate.into(), rate),
        (
            "eval.steps",
            (steps / 10).max(1).to_string(),
            "validation every so many steps; the best adapter is kept",
        ),
        (
            "eval.samples",
            format!("[{}]", prompts.join(", ")),
            "questions that are answered at every evaluation",
        ),
        ("output.dir", path_of(output), ""),
        ("output.export", "[\"peft\"]".into(), "or \"gguf-lora\" (llama.cpp, LM Studio), \"mlx\", …"),
    ] {
        let (of, key) = key.split_once('.').expect("a section and a key");
        if of != section {
            text += &format!("\n[{of}]\n");
            section = of;
        }
        let line = format!("{key} = {value}");
        text += &if comment.is_empty() { format!("{line}\n") } else { format!("{line:<35} # {comment}\n") };
    }
    text
}
