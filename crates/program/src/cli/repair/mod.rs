//! `repair`: an adapter that takes back what strong quantization changed. It learns from the model with more bits, on any text.

mod recipe;
mod written;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use rullama_train::base::Base;
use rullama_train::data::batch::Sample;
use rullama_train::data::dataset;
use rullama_train::files;
use rullama_train::recipe::{ObjectiveName, Recipe, Syntax, Template, toml_string};
use rullama_train::run::OpenBase;
use rullama_train::run::distill::teacher::Teacher;
use rullama_train::run::draft::{Fit, Picked};
use serde_json::json;

use super::recipe_args::{RecipeArgs, quoted};
use super::{output, pull, train};
use recipe::Draft;

/// Options of `repair`.
#[derive(Args)]
pub struct RepairArgs {
    /// The model to repair: "tiny", a name that `models` lists, hf:ORG/REPO:TYPE, or the path of a .gguf file.
    #[arg(value_name = "BASE", add = crate::cli::complete::base())]
    base: String,
    /// The model with more bits, such as its Q8_0 or BF16, with the same vocabulary.
    #[arg(long, value_name = "BETTER", add = crate::cli::complete::base())]
    teacher: String,
    /// Text to learn on: a file, a folder or a glob pattern in any format of data.train, such as the samples of a task [default: the
    /// teacher writes it].
    #[arg(long, value_name = "PATH", conflicts_with = "write")]
    text: Option<PathBuf>,
    /// Number of texts that the teacher writes; they go beside the recipe, into NAME.jsonl.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(10..))]
    write: u32,
    /// Tokens of each of these texts.
    #[arg(long, value_name = "TOKENS", default_value_t = 256, value_parser = clap::value_parser!(u32).range(8..))]
    tokens: u32,
    /// Random seed of these texts: the same seed gives the same ones.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Recipe file to write.
    #[arg(long, value_name = "FILE.toml", default_value = "repair.toml")]
    recipe: PathBuf,
    /// Output folder of the run [default: runs/ and the name of the recipe].
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Overwrite an existing recipe, and text beside it.
    #[arg(long)]
    force: bool,
    /// Write recipe and text, and do not train.
    #[arg(long)]
    only_write: bool,
    /// Print one JSON object.
    #[arg(long, requires = "only_write")]
    json: bool,
}

/// Writes the recipe, and the text if none is given, and trains.
pub fn run(args: &RepairArgs) -> Result<ExitCode> {
    args.json.then(output::keep);
    let path = &args.recipe;
    check_places(args)?;
    pull::base(&args.base)?;
    pull::base(&args.teacher)?;
    let frozen = OpenBase::named(&args.base, &Template::Auto)?;
    check_teacher(args, &frozen)?;
    let data = match &args.text {
        Some(text) => text.clone(),
        None => {
            let place = written_beside(path);
            files::write_atomic(&place, written::texts(args)?.as_bytes())?;
            output::line("written", place.display());
            place
        }
    };
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let output = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("runs/{stem}")));
    let samples = samples(args, &data, &frozen)?;
    let fit = Fit::of(&samples, ObjectiveName::Sft, &frozen);
    let draft = Draft {
        path,
        base: &args.base,
        teacher: &args.teacher,
        data: &data,
        output: &output,
        given: args.text.is_some(),
        fit: &fit,
    };
    let text = draft.text();
    // The written recipe must pass the checks of any recipe.
    Recipe::parse::<&str>(&text, Syntax::Toml, &path.display().to_string(), &[])?;
    files::write_atomic(path, text.as_bytes())?;
    output::line("written", path.display());
    output::line(
        "compare",
        format_args!("{} shows base, adapter and teacher, once it is trained", draft.eval()),
    );
    if args.only_write {
        output::line("next", format_args!("rullama-train {}", quoted(&path.to_string_lossy())));
        output::finish(json!({
            "recipe": path, "base": args.base, "teacher": args.teacher, "data": data, "output": output,
            "samples": samples.len(), "steps": fit.steps(),
        }));
        return Ok(ExitCode::SUCCESS);
    }
    train::run(&RecipeArgs::of(path.clone()), &train::TrainArgs::plain())
}

/// The file for what the teacher writes.
fn written_beside(recipe: &Path) -> PathBuf {
    recipe.with_extension("jsonl")
}

fn check_places(args: &RepairArgs) -> Result<()> {
    let path = &args.recipe;
    let name = path.display();
    if path.extension().is_none_or(|e| e != "toml") {
        bail!("{name}: the recipe is written as TOML; choose a name that ends in .toml");
    }
    if path.exists() && !args.force {
        bail!(
            "{name} already exists: `rullama-train {}` runs or resumes it; choose another name with --recipe, or overwrite it with --force",
            quoted(&path.to_string_lossy())
        );
    }
    files::check_file(path)?;
    let Some(text) = &args.text else {
        let beside = written_beside(path);
        if beside.exists() && !args.force {
            bail!(
                "{} exists: learn on it with --text {}, or overwrite it with --force",
                beside.display(),
                quoted(&beside.to_string_lossy())
            );
        }
        return Ok(files::check_file(&beside)?);
    };
    pull::samples(text)?;
    if !text.exists() && !dataset::files::is_pattern(text) && !dataset::files::is_of_hub(text) {
        bail!("{}: no such file or folder", text.display());
    }
    Ok(())
}

/// Fails if the teacher has another vocabulary, or nothing to teach.
fn check_teacher(args: &RepairArgs, frozen: &OpenBase) -> Result<()> {
    let teacher = Teacher::of(Base::open(&args.teacher)?, &frozen.base)?;
    if teacher.base.fingerprint() == frozen.fingerprint {
        bail!(
            "--teacher {} is the base itself, which has nothing to repair; name the same model with more bits, such as its Q8_0",
            args.teacher
        );
    }
    output::notices(&teacher.notices);
    Ok(())
}

/// The samples at `data`.
fn samples(args: &RepairArgs, data: &Path, frozen: &OpenBase) -> Result<Vec<Sample>> {
    let [base, train] = [args.base.as_str(), &data.to_string_lossy()].map(toml_string);
    let text = format!("[model]\nbase = {base}\n[data]\ntrain = {train}\n[output]\ndir = \"runs\"\n");
    let recipe = Recipe::parse::<&str>(&text, Syntax::Toml, "repair", &[])?;
    let Picked { data: found, objective } = Picked::read(&recipe, vec![data.to_owned()], frozen)?;
    if !objective.is_sft() {
        bail!("{} compares answers; give text, or examples", data.display());
    }
    Ok(found.train)
}
