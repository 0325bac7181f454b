//! The command line: what each verb does, in order, and what it prints.

mod check;
mod eval;
mod merge;
mod session;
mod show;
mod train;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use rullama_train::recipe::{Recipe, split_override};

/// Train LoRA adapters on quantized Gemma 4 GGUF files, on any GPU.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    train: Option<RecipeArgs>,
}

#[derive(Subcommand)]
enum Verb {
    /// Do everything up to the first step: show a sample with its loss marked, and the memory plan.
    Check {
        #[command(flatten)]
        recipe: RecipeArgs,
        /// Write loss and gradients of the first optimizer step to this safetensors file.
        #[arg(long, value_name = "FILE")]
        gradients: Option<PathBuf>,
    },
    /// Mean loss and perplexity over the validation data.
    Eval {
        #[command(flatten)]
        recipe: RecipeArgs,
        /// A PEFT folder; without it the base alone is evaluated.
        #[arg(long, value_name = "DIR")]
        adapter: Option<PathBuf>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Merge a PEFT adapter into its base: one GGUF file for Ollama, llama.cpp and LM Studio.
    Merge(merge::MergeArgs),
}

/// A recipe and what overrides it.
#[derive(Args)]
struct RecipeArgs {
    /// Recipe file, TOML or JSON.
    recipe: PathBuf,
    /// Override a key of the recipe, as in --set train.learning_rate=2e-4.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
}

impl RecipeArgs {
    fn read(&self) -> Result<Recipe> {
        let split = |o: &String| split_override(o).map(|(k, v)| (k.to_string(), v.to_string()));
        let overrides = self.overrides.iter().map(split).collect::<Result<Vec<_>, _>>()?;
        let recipe = Recipe::read(&self.recipe, &overrides)?;
        recipe.check_files()?;
        Ok(recipe)
    }
}

/// Parses the command line and does what it says.
pub fn run() -> Result<()> {
    let cli = Cli::parse();
    match (cli.verb, cli.train) {
        (Some(Verb::Check { recipe, gradients }), _) => check::run(&recipe.read()?, gradients.as_deref()),
        (Some(Verb::Eval { recipe, adapter, json }), _) => {
            eval::run(&recipe.read()?, adapter.as_deref(), json)
        }
        (Some(Verb::Merge(args)), _) => merge::run(&args),
        (None, Some(recipe)) => train::run(&recipe.read()?),
        (None, None) => unreachable!("clap demands a recipe or a verb"),
    }
}
