//! `init`: writes a first recipe. Names come from flags or from questions on the terminal, values from the samples.

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
use super::{models, output};

/// Options of `init`. Missing ones are asked for on a terminal.
#[derive(Args)]
pub struct InitArgs {
    /// Recipe file to write.
    #[arg(default_value = "recipe.toml")]
    recipe: PathBuf,
    /// Base model: "tiny", an Ollama tag, or the path of a .gguf file.
    #[arg(long)]
    base: Option<String>,
    /// Samples: a file, a folder, or a glob pattern.
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Output folder of the run [default: runs/ and the name of the recipe].
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Prompt that is answered before and after training; may be repeated.
    #[arg(long, value_name = "TEXT")]
    prompt: Vec<String>,
    /// Overwrite an existing recipe.
    #[arg(long)]
    force: bool,
}

/// Asks for what is missing, reads the samples, and writes the recipe.
pub fn run(args: &InitArgs) -> Result<()> {
    let path = &args.recipe;
    if path.extension().is_none_or(|e| e != "toml") {
        bail!("{}: the recipe is written as TOML; choose a name that ends in .toml", path.display());
    }
    if path.exists() && !args.force {
        bail!("{} already exists; choose another name, or overwrite it with --force", path.display());
    }
    files::check_file(path)?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut asker = Asker::new()?;
    let base = asker.base(args.base.as_deref())?;
    let frozen = OpenBase::named(&base, &Template::Auto)?;
    let data = match &args.data {
        Some(data) => data.clone(),
        None => asker.ask("Samples (a file, a folder, or a glob pattern)", None, "--data PATH")?.into(),
    };
    let samples = read_samples(&data, &frozen)?;
    output::lengths(&samples);
    let output = match &args.output {
        Some(output) => output.clone(),
        None => asker.ask("Output folder", Some(&format!("runs/{stem}")), "--output DIR")?.into(),
    };
    let mut prompts = args.prompt.clone();
    if prompts.is_empty() && asker.editor.is_some() {
        let prompt =
            asker.ask("A prompt to answer before and after training (empty: none)", Some(""), "--prompt")?;
        prompts.extend(Some(prompt).filter(|prompt| !prompt.is_empty()));
    }
    let text = recipe(path, &base, &data, &output, &prompts, &Fit::of(&samples, &frozen));
    let name = path.display().to_string();
    // The written recipe must pass the checks of any recipe.
    Recipe::parse::<&str>(&text, Syntax::Toml, &name, &[])?;
    files::write_atomic(path, text.as_bytes())?;
    output::line("written", &name);
    output::line("next", format_args!("rullama-train check {name}; rullama-train {name}"));
    Ok(())
}

/// Asks questions on a terminal. Without one, takes the default; a missing value without default is an error that names the flag.
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
                format!("{flag} is required when there is no terminal to ask on ({question})")
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
                Err(ReadlineError::Interrupted | ReadlineError::Eof) => {
                    bail!("cancelled; nothing was written")
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The base: given, or chosen from a list by number or name.
    fn base(&mut self, given: Option<&str>) -> Result<String> {
        if let Some(given) = given {
            return Ok(given.to_owned());
        }
        if self.editor.is_none() {
            bail!(
                "--base BASE is required when there is no terminal to ask on; models on this machine: {}",
                models::trainable().join(", ")
            );
        }
        let available = models::trainable();
        for (number, name) in available.iter().enumerate() {
            output::text(format_args!("  {}  {name}", number + 1));
        }
        let answer = self.ask(
            "Base (a number, an Ollama tag, or the path of a .gguf file)",
            Some("1"),
            "--base BASE",
        )?;
        let chosen = answer.parse::<usize>().ok().and_then(|number| available.get(number.wrapping_sub(1)));
        Ok(chosen.cloned().unwrap_or(answer))
    }
}

/// Settings that follow from the samples and the base.
struct Fit {
    samples: usize,
    tokens: usize,
    longest: usize,
    max_seq_len: usize,
    /// Number of samples that are longer than `max_seq_len`.
    overlong: usize,
    accumulation: usize,
    epochs: usize,
    val_size: &'static str,
    learning_rate: &'static str,
    tiny: bool,
}

/// Tokens per step to aim at.
const STEP_TOKENS: usize = 4096;
/// Minimum number of steps per run to aim at.
const LEAST_STEPS: usize = 30;
/// Maximum row length to suggest: longer rows need more memory than most GPUs have.
const LONGEST_ROW: usize = 2048;

impl Fit {
    fn of(samples: &[Sample], frozen: &OpenBase) -> Fit {
        let mut lengths: Vec<usize> = samples.iter().map(|sample| sample.ids.len()).collect();
        lengths.sort_unstable();
        let longest = lengths[lengths.len() - 1];
        let median = lengths[lengths.len() / 2];
        let context = frozen.base.config().context_length;
        let tokens = lengths.iter().sum::<usize>();
        let epochs = 3;
        let tiny = frozen.base.name() == "tiny";
        // Rows that hold several samples are packed well, but a learning rate schedule needs a few dozen steps.
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

    /// The comment at the start of the recipe file `name`.
    fn header(&self, name: &str) -> String {
        let samples = output::count(self.samples, "sample");
        let tokens = output::count(self.tokens, "token");
        let longest = output::count(self.longest, "token");
        let steps = output::count(self.steps(), "step");
        format!(
            "# {samples} with {tokens}, the longest with {longest}; about {steps}.\n#\n\
             #   rullama-train check {name}    # prepares everything: lengths, memory, a sample with its loss tokens\n\
             #   rullama-train {name}          # trains; the same command resumes a run that was stopped\n#\n\
             # recipes/chat.toml of rullama-train documents every key.\n"
        )
    }

    /// Keys of the recipe with their values and comments.
    fn lines(&self) -> Vec<(&'static str, String, String)> {
        let (overlong, overlong_comment) = match self.overlong {
            0 => (
                "error",
                "no sample is longer; \"drop\" or \"truncate\" would accept longer ones".to_string(),
            ),
            n => (
                "drop",
                format!(
                    "skips longer ones ({}); \"truncate\" would cut off their ends",
                    output::count(n, "sample")
                ),
            ),
        };
        let rate_comment = match self.tiny {
            true => "high, as suits a model as small as tiny",
            false => "typical: 1e-5 for large bases to 3e-4 for small ones",
        };
        let loss_comment = "which tokens are loss tokens; or \"last_assistant\", \"all\"";
        let eval_steps = (self.steps() / 10).max(1).to_string();
        vec![
            ("lora.rank", "16".into(), "higher: more capacity, memory and time".into()),
            (
                "data.val_size",
                self.val_size.into(),
                "held out for validation: a fraction, or a number of samples".into(),
            ),
            ("data.train_on", quoted("assistant"), loss_comment.into()),
            (
                "data.max_seq_len",
                self.max_seq_len.to_string(),
                "maximum tokens per row; samples are packed into rows".into(),
            ),
            ("data.overlong", quoted(overlong), overlong_comment),
            ("train.epochs", self.epochs.to_string(), "passes over the samples".into()),
            ("train.gradient_accumulation_steps", self.accumulation.to_string(), "rows per step".into()),
            ("train.learning_rate", self.learning_rate.into(), rate_comment.into()),
            ("eval.steps", eval_steps, "steps between evaluations; the best adapter is kept".into()),
        ]
    }

    /// Estimated number of steps of the run.
    fn steps(&self) -> usize {
        (self.epochs * self.tokens).div_ceil(self.accumulation * self.max_seq_len).max(1)
    }
}

/// The recipe as TOML with comments.
fn recipe(path: &Path, base: &str, data: &Path, output: &Path, prompts: &[String], fit: &Fit) -> String {
    let prompts: Vec<String> = prompts.iter().map(|prompt| quoted(prompt)).collect();
    let mut lines = vec![
        ("model.base", quoted(base), String::new()),
        ("data.train", quoted(&data.to_string_lossy()), String::new()),
    ];
    lines.extend(fit.lines());
    lines.extend([
        (
            "eval.samples",
            format!("[{}]", prompts.join(", ")),
            "prompts that are answered at every evaluation".into(),
        ),
        ("output.dir", quoted(&output.to_string_lossy()), String::new()),
        ("output.export", "[\"peft\"]".into(), "or \"gguf-lora\" (llama.cpp, LM Studio), \"mlx\", …".into()),
    ]);
    let mut text = fit.header(&path.display().to_string());
    for section in ["model", "lora", "data", "train", "eval", "output"] {
        text += &format!("\n[{section}]\n");
        for (key, value, comment) in &lines {
            let Some(key) = key.strip_prefix(section).and_then(|key| key.strip_prefix('.')) else { continue };
            let line = format!("{key} = {value}");
            text +=
                &if comment.is_empty() { format!("{line}\n") } else { format!("{line:<35} # {comment}\n") };
        }
    }
    text
}

/// A TOML string.
fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}
