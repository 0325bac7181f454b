//! `init`: writes a first recipe. Names come from flags or from questions on the terminal, values from the samples.

mod ask;
mod write;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use rullama_train::data::batch::Sample;
use rullama_train::data::dataset;
use rullama_train::files;
use rullama_train::recipe::{ObjectiveName, Recipe, Syntax, Template};
use rullama_train::run::OpenBase;
use rullama_train::run::draft::{self, Fit};
use serde_json::json;

use super::inspect::{print_first_sample, read_samples};
use super::setup::session::Session;
use super::{models, output, pull};
use ask::Asker;
use write::Recipe as Draft;

/// Options of `init`. Missing ones are asked for on a terminal.
#[derive(Args)]
pub struct InitArgs {
    /// Recipe file to write.
    #[arg(default_value = "recipe.toml")]
    recipe: PathBuf,
    /// Base model: "tiny", a name that `models` lists, hf:ORG/REPO:TYPE, or the path of a .gguf file.
    #[arg(long, add = crate::cli::complete::base())]
    base: Option<String>,
    /// Samples: a file, a folder, or a glob pattern.
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Output folder of the run [default: runs/ and the name of the recipe].
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Prompt that is answered before and after training; may be repeated [default: the first questions of the validation
    /// samples].
    #[arg(long, value_name = "TEXT")]
    prompt: Vec<String>,
    /// Overwrite an existing recipe.
    #[arg(long)]
    force: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Asks for what is missing, reads the samples, and writes the recipe.
pub fn run(args: &InitArgs) -> Result<()> {
    if args.json {
        output::keep();
    }
    let path = &args.recipe;
    if path.extension().is_none_or(|e| e != "toml") {
        bail!("{}: the recipe is written as TOML; choose a name that ends in .toml", path.display());
    }
    if path.exists() && !args.force {
        bail!("{} already exists; choose another name, or overwrite it with --force", path.display());
    }
    files::check_file(path)?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut asker = Asker::new()?;
    let (base, frozen) = base(&mut asker, args.base.as_deref())?;
    let (data, (samples, objective)) = samples(&mut asker, args.data.as_deref(), &frozen)?;
    output::lengths(&samples);
    print_first_sample(&samples, &frozen);
    output::text("");
    let fit = Fit::of(&samples, objective, &frozen);
    output::line("proposal", fit.proposal());
    output::notices(&fit.notices(frozen.base.name(), false));
    let output = match &args.output {
        Some(output) => output.clone(),
        None => asker.ask("Output folder", Some(&format!("runs/{stem}")), "--output DIR")?.into(),
    };
    let prompts = prompts(&mut asker, &args.prompt, &samples, &fit, &frozen)?;
    let system = frozen.ollama_system.as_deref();
    if let Some(system) = system {
        output::line(
            "system",
            format_args!("{system:?}, from Ollama's model; the recipe puts it into data.system"),
        );
    }
    let draft =
        Draft { path, base: &base, data: &data, output: &output, system, prompts: &prompts, fit: &fit };
    let text = draft.text(frozen.base.is_ollama());
    let name = path.display().to_string();
    // The written recipe must pass the checks of any recipe.
    let recipe = Recipe::parse::<&str>(&text, Syntax::Toml, &name, &[])?;
    files::write_atomic(path, text.as_bytes())?;
    output::line("written", &name);
    // `check` and the run say it too, and report what fails here.
    if let Ok(Some(limit)) = memory(&recipe) {
        output::line("memory", limit);
    }
    for (number, (command, _)) in draft.next(frozen.base.is_ollama()).iter().enumerate() {
        output::line(if number == 0 { "next" } else { "" }, command);
    }
    output::finish(json!({
        "recipe": path, "base": base, "data": data, "output": output, "prompts": prompts, "steps": fit.steps(),
        "samples": samples.len(),
    }));
    Ok(())
}

/// The memory limit with which a run of `recipe` fits this GPU, if it does not fit as it is.
fn memory(recipe: &Recipe) -> Result<Option<String>> {
    let gpu = Session::device(recipe)?;
    if gpu.memory().is_none() {
        return Ok(None);
    }
    let (mut session, initial) = Session::read(recipe)?;
    session.limit_memory(&gpu, &initial.adapter)
}

/// The base: given, or chosen from a list by number or name. An answer that cannot be opened is asked for again.
fn base(asker: &mut Asker, given: Option<&str>) -> Result<(String, OpenBase)> {
    let open = |name: String| -> Result<(String, OpenBase)> {
        pull::base(&name)?;
        let frozen = OpenBase::named(&name, &Template::Auto)?;
        Ok((name, frozen))
    };
    if let Some(given) = given {
        return open(given.to_owned());
    }
    let available = models::trainable();
    if !asker.can_ask() {
        bail!(
            "--base BASE is required when there is no terminal to ask on; models on this machine: {}",
            available.join(", ")
        );
    }
    // The built-in model comes first in the list of models; here it is the last choice.
    let mut choices = available;
    choices.rotate_left(1);
    for (number, name) in choices.iter().enumerate() {
        let about = if name == "tiny" {
            "  a toy of 4 MiB that is built in, for trying this program out"
        } else {
            ""
        };
        output::text(format_args!("  {}  {name}{about}", number + 1));
    }
    let question = "Base (a number, an Ollama tag, or the path of a .gguf file)";
    asker.until(question, "1", "--base BASE", |answer| {
        let number = answer.parse::<usize>().ok();
        let chosen = number.and_then(|number| choices.get(number.wrapping_sub(1)));
        match (chosen, number) {
            (Some(name), _) => open(name.clone()),
            (None, Some(_)) => bail!("{answer}: expected a number from 1 to {}", choices.len()),
            (None, None) => open(answer.to_owned()),
        }
    })
}

/// The samples: given, or asked for until they can be read.
fn samples(
    asker: &mut Asker,
    given: Option<&Path>,
    frozen: &OpenBase,
) -> Result<(PathBuf, (Vec<Sample>, ObjectiveName))> {
    let read = |path: &Path| -> Result<(PathBuf, (Vec<Sample>, ObjectiveName))> {
        pull::samples(path)?;
        if !path.exists() && !dataset::files::is_pattern(path) && !dataset::files::is_of_hub(path) {
            bail!("{}: no such file or folder", path.display());
        }
        Ok((path.to_owned(), read_samples(path, frozen, frozen.ollama_system.as_deref())?))
    };
    match given {
        Some(path) => read(path),
        None => asker.until("Samples (a file, a folder, or a glob pattern)", "", "--data PATH", |answer| {
            // A path that was dragged into the terminal has quotes.
            read(Path::new(answer.trim_matches(['"', '\''])))
        }),
    }
}

/// The prompts of `eval.samples`: given, typed, or the first questions of the validation samples.
fn prompts(
    asker: &mut Asker,
    given: &[String],
    samples: &[Sample],
    fit: &Fit,
    frozen: &OpenBase,
) -> Result<Vec<String>> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    let questions = draft::questions(samples, fit, frozen);
    if !asker.can_ask() {
        return Ok(questions);
    }
    let default = match &questions[..] {
        [] => "none",
        questions => {
            output::text("Before and after training, the model answers, from the samples:");
            questions.iter().for_each(|question| output::text(format_args!("  {question}")));
            "these"
        }
    };
    let answer = asker.ask("Prompts to answer (or one of your own)", Some(default), "--prompt TEXT")?;
    Ok(if answer == default { questions } else { vec![answer] })
}
