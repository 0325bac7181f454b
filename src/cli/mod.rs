//! The command line: what each verb does, in order, and what it prints.

mod bench;
mod bench_decode;
mod ceilings;
mod chat;
mod check;
mod describe;
mod device;
mod eval;
mod export;
mod generate;
mod held_out;
mod inference;
mod init;
mod inspect;
mod laps;
mod manual;
mod merge;
mod models;
mod pipelines;
mod serve;
mod session;
mod show;
mod sweep;
mod train;
mod web;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, CommandFactory, Parser, Subcommand};
use rullama_train::recipe::{Recipe, split_override};

/// Train LoRA adapters on quantized Gemma 4 GGUF files, on any GPU.
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
    /// Do everything up to the first step: show a sample with its loss marked, and the memory plan.
    Check {
        #[command(flatten)]
        recipe: RecipeArgs,
        /// Write loss and gradients of the first optimizer step to this safetensors file.
        #[arg(long, value_name = "FILE")]
        gradients: Option<PathBuf>,
        /// Time so many steps, after one more, and estimate the run; unset, 3 on a GPU and none where a CPU plays it.
        #[arg(long, value_name = "STEPS")]
        measure: Option<usize>,
    },
    /// Time training steps or replies on random tokens: tokens/s, memory, time by kernel.
    Bench(bench::BenchArgs),
    /// Mean loss, perplexity and token accuracy over validation data, of base and adapter side by side.
    Eval {
        #[command(flatten)]
        recipe: RecipeArgs,
        #[command(flatten)]
        eval: eval::EvalArgs,
    },
    /// Write an adapter, or several as one, in other formats, and read each back.
    Export(export::ExportArgs),
    /// Merge an adapter into its base: one GGUF file for Ollama, llama.cpp and LM Studio.
    Merge(merge::MergeArgs),
    /// Talk with a base, or with a base and adapters.
    Chat(chat::ChatArgs),
    /// Reply to prompts from the command line, a file or stdin.
    Generate(generate::GenerateArgs),
    /// Serve OpenAI's chat completions over HTTP.
    Serve(serve::ServeArgs),
    /// Serve the page that trains in a browser, on this machine alone, and open it.
    Web(web::WebArgs),
    /// Write a commented recipe for samples of your own, after asking or from flags.
    Init(init::InitArgs),
    /// Describe a GGUF, an adapter, a checkpoint, a run's folder, or samples.
    Inspect(inspect::InspectArgs),
    /// List the models of Ollama's store, and which of them can be trained.
    Models(models::ModelsArgs),
    /// Print completions for a shell.
    Completions(manual::CompletionsArgs),
    /// Print the manual page, or write one of every command.
    Man(manual::ManArgs),
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
        let recipe = self.parse()?;
        recipe.check_files()?;
        Ok(recipe)
    }

    /// The recipe, whether its files exist or not.
    fn parse(&self) -> Result<Recipe> {
        let split = |o: &String| split_override(o).map(|(k, v)| (k.to_string(), v.to_string()));
        let overrides = self.overrides.iter().map(split).collect::<Result<Vec<_>, _>>()?;
        Ok(Recipe::read(&self.recipe, &overrides)?)
    }
}

/// An error and its causes on one line, without the causes whose words it has already.
pub fn message(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}

/// Parses the command line and does what it says.
pub fn run() -> Result<ExitCode> {
    // Where there is no desktop, a layer of Mesa's complains on stderr that it cannot ask which GPU the desktop uses.
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
        (Some(Verb::Chat(args)), _) => chat::run(&args),
        (Some(Verb::Generate(args)), _) => generate::run(&args),
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
        (None, None) => unreachable!("clap demands a recipe or a verb"),
    }?;
    Ok(ExitCode::SUCCESS)
}
