//! The command line: one module per command, and what they share (`setup`, `output`, `talk`).

mod bench;
mod check;
mod eval;
mod export;
mod init;
mod inspect;
mod manual;
mod merge;
mod models;
mod output;
mod serve;
mod setup;
mod talk;
mod train;
mod web;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, CommandFactory, Parser, Subcommand};
use rullama_train::recipe::{Recipe, split_override};

/// Train LoRA adapters on quantized GGUF models, on any GPU.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    train: Option<RecipeArgs>,
    #[command(flatten)]
    how: train::TrainArgs,
}

#[derive(Subcommand)]
enum Verb {
    /// Check a recipe: prepare everything up to the first step, and show the memory plan and a sample with its loss tokens.
    Check {
        #[command(flatten)]
        recipe: RecipeArgs,
        /// Write the loss and gradients of the first optimizer step to this safetensors file.
        #[arg(long, value_name = "FILE")]
        gradients: Option<PathBuf>,
        /// Time this many steps, after one warm-up step, to estimate the duration of the run [default: 3; 0 with a software renderer].
        #[arg(long, value_name = "STEPS")]
        measure: Option<usize>,
    },
    /// Time training steps or replies on random tokens: tokens per second, memory, time per kernel.
    Bench(bench::BenchArgs),
    /// Measure loss, perplexity and token accuracy on validation data, for the base and for the base with an adapter.
    Eval {
        #[command(flatten)]
        recipe: RecipeArgs,
        #[command(flatten)]
        eval: eval::EvalArgs,
    },
    /// Convert an adapter, or the sum of several, to other formats, and verify each result.
    Export(export::ExportArgs),
    /// Merge an adapter into its base: one GGUF file for Ollama, llama.cpp and LM Studio.
    Merge(merge::MergeArgs),
    /// Chat with a base model, with or without adapters.
    Chat(talk::chat::ChatArgs),
    /// Reply to prompts from the command line, a file or stdin.
    Generate(talk::generate::GenerateArgs),
    /// Serve an OpenAI-compatible chat completions API over HTTP.
    Serve(serve::ServeArgs),
    /// Serve the web page that trains in the browser, to this machine only, and open it.
    Web(web::WebArgs),
    /// Write a commented recipe for your own samples, from flags or by asking.
    Init(init::InitArgs),
    /// Describe a GGUF file, an adapter, a checkpoint, the output folder of a run, or samples.
    Inspect(inspect::InspectArgs),
    /// List the models in Ollama's store, and whether they can be trained.
    Models(models::ModelsArgs),
    /// Print shell completions.
    Completions(manual::CompletionsArgs),
    /// Print the manual page, or write the pages of all commands to a folder.
    Man(manual::ManArgs),
    /// Print the reference of all commands as Markdown.
    #[command(hide = true)]
    DescribeCli,
}

/// A recipe and overrides of its keys.
#[derive(Args)]
struct RecipeArgs {
    /// Recipe file (TOML or JSON).
    recipe: PathBuf,
    /// Override a key of the recipe, for example --set train.learning_rate=2e-4; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
}

impl RecipeArgs {
    /// Reads the recipe and checks that the files it names exist.
    fn read(&self) -> Result<Recipe> {
        let recipe = self.parse()?;
        recipe.check_files()?;
        Ok(recipe)
    }

    /// Reads the recipe without checking its files.
    fn parse(&self) -> Result<Recipe> {
        let split = |o: &String| split_override(o).map(|(k, v)| (k.to_string(), v.to_string()));
        let overrides = self.overrides.iter().map(split).collect::<Result<Vec<_>, _>>()?;
        Ok(Recipe::read(&self.recipe, &overrides)?)
    }
}

/// An error and its causes on one line. Causes whose text is already part of the line are skipped.
pub fn message(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}

/// Refuses an option under its old name. `value`: what the user passed to it.
fn refuse_renamed(old: &str, new: &str, value: &Option<String>) -> Result<()> {
    if let Some(value) = value {
        bail!("{old} is now called {new}: use {new} {value:?}");
    }
    Ok(())
}

/// Parses the command line and runs the command.
pub fn run() -> Result<ExitCode> {
    // Without a desktop, Mesa's device-select layer prints a warning to stderr.
    if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: this is the only thread so far.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
    let cli = Cli::parse();
    match (cli.verb, cli.train) {
        (None, Some(recipe)) => return train::run(&recipe.read()?, &cli.how),
        (Some(Verb::Check { recipe, gradients, measure }), _) => {
            check::run(&recipe.read()?, gradients.as_deref(), measure)
        }
        (Some(Verb::Eval { recipe, eval }), _) => {
            let found = if eval.reads_recipe_data() { recipe.read()? } else { recipe.parse()? };
            eval::run(&found, &eval)
        }
        (Some(Verb::Bench(args)), _) => bench::run(&args),
        (Some(Verb::Export(args)), _) => export::run(&args),
        (Some(Verb::Merge(args)), _) => merge::run(&args),
        (Some(Verb::Chat(args)), _) => talk::chat::run(&args),
        (Some(Verb::Generate(args)), _) => talk::generate::run(&args),
        (Some(Verb::Serve(args)), _) => serve::run(&args),
        (Some(Verb::Web(args)), _) => web::run(&args),
        (Some(Verb::Init(args)), _) => init::run(&args),
        (Some(Verb::Inspect(args)), _) => inspect::run(&args),
        (Some(Verb::Models(args)), _) => models::run(&args),
        (Some(Verb::Completions(args)), _) => {
            manual::completions(Cli::command(), &args);
            Ok(())
        }
        (Some(Verb::Man(args)), _) => manual::man(Cli::command(), &args),
        (Some(Verb::DescribeCli), _) => {
            output::text(manual::markdown(Cli::command()).trim_end());
            Ok(())
        }
        (None, None) => unreachable!("clap requires a recipe or a command"),
    }?;
    Ok(ExitCode::SUCCESS)
}
