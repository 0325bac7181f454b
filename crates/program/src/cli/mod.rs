//! The command line: one module per command, and what they share (`setup`, `output`, `talk`).

mod bench;
mod bus_error;
mod card;
mod check;
mod check_lr;
mod check_rewards;
mod complete;
mod eval;
mod eval_teacher;
mod example;
mod export;
mod fault;
mod http;
mod init;
mod inspect;
mod interrupted;
mod make_data;
mod manual;
mod mcp;
mod merge;
mod models;
mod ollama;
pub mod output;
mod publish;
mod pull;
mod quantize;
mod ranks;
mod recipe_args;
mod repair;
mod selftest;
mod serve;
mod setup;
mod talk;
mod train;
mod ui;
mod web;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{CommandFactory, Parser, Subcommand};
use recipe_args::RecipeArgs;
use rullama_train::gpu::{Backend, KernelSetting};
use rullama_train::run;

/// Train LoRA adapters on quantized GGUF models, on any GPU.
#[derive(Parser)]
#[command(
    name = "rullama-train",
    version,
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true
)]
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
    /// Train as a recipe says; the same as giving the recipe alone.
    Train {
        #[command(flatten)]
        recipe: RecipeArgs,
        #[command(flatten)]
        how: train::TrainArgs,
    },
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
        #[command(flatten)]
        rate: check_lr::RateArgs,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Time training steps or replies on random tokens: tokens per second, memory, time per kernel.
    Bench(bench::BenchArgs),
    /// Test whether this GPU computes right, and how fast, in under a minute; prints a block to paste into an issue.
    Selftest(selftest::SelftestArgs),
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
    /// Write a model with its layers in another format, such as a student of its own for `train.objective = "distill"`.
    Quantize(quantize::QuantizeArgs),
    /// Repair a strongly quantized model: an adapter learns from the same model with more bits. Writes the recipe, and trains.
    Repair(repair::RepairArgs),
    /// Chat with a base model, with or without adapters.
    Chat(talk::chat::ChatArgs),
    /// Reply to prompts from the command line, a file or stdin.
    Generate(talk::generate::GenerateArgs),
    /// Serve OpenAI's chat completions and completions over HTTP.
    Serve(serve::ServeArgs),
    /// Serve the web page that trains in the browser, to this machine only, and open it.
    Web(web::WebArgs),
    /// Open the training page in a browser, using this program as its backend.
    Ui(ui::UiArgs),
    /// Write a recipe for the built-in model and its samples, to try the program: then `rullama-train recipes/chat.toml`.
    Example(example::ExampleArgs),
    /// Serve the Model Context Protocol on stdin and stdout, for agents: the client starts this command.
    Mcp(mcp::McpArgs),
    /// Write a commented recipe for your own samples, from flags or by asking.
    Init(init::InitArgs),
    /// Write questions and answers about documents with a model: a file of samples to read and edit.
    MakeData(make_data::MakeDataArgs),
    /// Describe a GGUF file, an adapter, a checkpoint, the output folder of a run, or samples; print token ids.
    Inspect(inspect::InspectArgs),
    /// List the models on this machine, wherever other programs keep them, and whether they can be trained.
    Models(models::ModelsArgs),
    /// Download a model or a data set of the Hugging Face Hub into its cache, or its newest revision.
    Pull(pull::PullArgs),
    /// Print the JSON schema of recipes, for editors and scripts.
    Schema,
    /// Print shell completions.
    Completions(manual::CompletionsArgs),
    /// Print the manual page, or write the pages of all commands to a folder.
    Man(manual::ManArgs),
    /// Print the reference of all commands as Markdown.
    #[command(hide = true)]
    DescribeCli,
}

impl Verb {
    /// The command's name.
    fn name(&self) -> &'static str {
        match self {
            Verb::Train { .. } => "train",
            Verb::Check { .. } => "check",
            Verb::Bench(_) => "bench",
            Verb::Selftest(_) => "selftest",
            Verb::Eval { .. } => "eval",
            Verb::Export(_) => "export",
            Verb::Merge(_) => "merge",
            Verb::Quantize(_) => "quantize",
            Verb::Repair(_) => "repair",
            Verb::Chat(_) => "chat",
            Verb::Generate(_) => "generate",
            Verb::Serve(_) => "serve",
            Verb::Web(_) => "web",
            Verb::Ui(_) => "ui",
            Verb::Mcp(_) => "mcp",
            Verb::Example(_) => "example",
            Verb::Init(_) => "init",
            Verb::MakeData(_) => "make-data",
            Verb::Inspect(_) => "inspect",
            Verb::Models(_) => "models",
            Verb::Pull(_) => "pull",
            Verb::Schema => "schema",
            Verb::Completions(_) => "completions",
            Verb::Man(_) => "man",
            Verb::DescribeCli => "describe-cli",
        }
    }
}

/// An error and its causes on one line, with the settings that help where a device refused. Causes whose text is already part of the
/// line are skipped.
pub fn message(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    let refused = error.chain().find_map(run::device_error);
    if let Some(advice) = refused.and_then(|refused| run::remedy(refused, with_option)) {
        text += &format!("; {advice}");
    }
    shortened(text)
}

/// A key of a recipe with the option that commands have for it.
fn with_option(key: &str) -> String {
    let option = match key {
        "device.backend" => "--backend",
        "device.gpu" => "--gpu",
        "device.kernels" => "--kernels",
        "the context" => "--context",
        "train.memory_limit" => "--memory-limit",
        "train.offload_experts" => "--offload-experts",
        "train.offload_inputs" => "--offload-inputs",
        "train.offload_layers" => "--offload-layers",
        _ => return key.into(),
    };
    format!("{key} ({option})")
}

/// A text without its middle if it is too long to read: messages quote keys and values of foreign files.
fn shortened(text: String) -> String {
    const START: usize = 1500;
    const END: usize = 300;
    let count = text.chars().count();
    if count <= START + END + 100 {
        return text;
    }
    let (start, end) = (text.chars().take(START), text.chars().skip(count - END));
    start.chain(format!(" … ({} characters) … ", count - START - END).chars()).chain(end).collect()
}

/// A value of `--kernels`.
fn kernels(name: &str) -> Result<KernelSetting, serde_json::Error> {
    serde_json::from_value(name.into())
}

/// A value of `--backend`.
fn backend(name: &str) -> Result<Backend, serde_json::Error> {
    serde_json::from_value(name.into())
}

/// Refuses an option under its old name. `value`: what the user passed to it.
fn refuse_renamed(old: &str, new: &str, value: &Option<String>) -> Result<()> {
    if let Some(value) = value {
        bail!("{old} is now called {new}: use {new} {value:?}");
    }
    Ok(())
}

/// Refuses a first word that is neither a command nor a file, which would otherwise be read as the name of a recipe.
fn refuse_unknown_command() -> Result<()> {
    let Some(word) = std::env::args().nth(1).filter(|word| !word.starts_with('-') && !word.is_empty()) else {
        return Ok(());
    };
    let command = Cli::command();
    let known: Vec<&str> =
        command.get_subcommands().filter(|c| !c.is_hide_set()).map(|c| c.get_name()).collect();
    let named = command.get_subcommands().any(|c| c.get_name() == word) || word == "help";
    // A recipe that does not exist is an error of its own.
    if named || word.contains(['.', '/', '\\']) || Path::new(&word).exists() {
        return Ok(());
    }
    let similarity = |name: &&&str| strsim::normalized_damerau_levenshtein(name, &word);
    let nearest = known.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    match nearest.filter(|name| similarity(name) >= 0.5) {
        Some(name) => bail!("`{word}` is neither a command nor a recipe; did you mean `{name}`?"),
        None => bail!("`{word}` is neither a command nor a recipe; the commands are {}", known.join(", ")),
    }
}

/// Prints a text without the line breaks at its end.
fn print(text: String) -> Result<()> {
    output::text(text.trim_end());
    Ok(())
}

/// Parses the command line and runs the command.
pub fn run() -> Result<ExitCode> {
    // Without a desktop, Mesa's device-select layer prints a warning to stderr.
    if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: this is the only thread so far.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
    bus_error::explain();
    clap_complete::CompleteEnv::with_factory(Cli::command).complete();
    refuse_unknown_command()?;
    let cli = Cli::parse();
    fault::of_disk()?;
    if let Some(verb) = cli.verb.as_ref().filter(|verb| !matches!(verb, Verb::Train { .. } | Verb::Bench(_)))
    {
        ranks::refuse(verb.name())?;
    }
    match (cli.verb, cli.train) {
        (Some(Verb::Train { recipe, how }), _) => return train::run(&recipe, &how),
        (None, Some(recipe)) => return train::run(&recipe, &cli.how),
        (Some(Verb::Selftest(args)), _) => return selftest::run(&args),
        (Some(Verb::Check { recipe, rate, json, .. }), _) if rate.lr => {
            json.then(output::keep);
            check_lr::run(&recipe.read()?, &recipe.recipe, &rate)
        }
        (Some(Verb::Check { recipe, gradients, measure, json, .. }), _) => {
            json.then(output::keep);
            check::run(&recipe.read()?, &recipe.recipe, gradients.as_deref(), measure)
        }
        (Some(Verb::Eval { recipe, eval }), _) => {
            let found = if eval.reads_recipe_data() { recipe.read()? } else { recipe.parse()? };
            eval::run(&found, &eval)
        }
        (Some(Verb::Bench(args)), _) => return bench::run(&args),
        (Some(Verb::Repair(args)), _) => return repair::run(&args),
        (Some(Verb::Export(args)), _) => export::run(&args),
        (Some(Verb::Merge(args)), _) => merge::run(&args),
        (Some(Verb::Quantize(args)), _) => quantize::run(&args),
        (Some(Verb::Chat(args)), _) => talk::chat::run(&args),
        (Some(Verb::Generate(args)), _) => talk::generate::run(&args),
        (Some(Verb::Serve(args)), _) => serve::run(&args),
        (Some(Verb::Web(args)), _) => web::run(&args),
        (Some(Verb::Ui(args)), _) => ui::run(&args),
        (Some(Verb::Mcp(args)), _) => mcp::run(&args),
        (Some(Verb::Example(args)), _) => example::run(&args),
        (Some(Verb::Init(args)), _) => init::run(&args),
        (Some(Verb::MakeData(args)), _) => make_data::run(&args),
        (Some(Verb::Inspect(args)), _) => inspect::run(&args),
        (Some(Verb::Models(args)), _) => models::run(&args),
        (Some(Verb::Pull(args)), _) => pull::run(&args),
        (Some(Verb::Schema), _) => print(format!("{:#}", rullama_train::recipe::schema())),
        (Some(Verb::Completions(args)), _) => manual::completions(&Cli::command(), &args),
        (Some(Verb::Man(args)), _) => manual::man(Cli::command(), &args),
        (Some(Verb::DescribeCli), _) => print(manual::markdown(Cli::command())),
        (None, None) => unreachable!("clap requires a recipe or a command"),
    }?;
    Ok(ExitCode::SUCCESS)
}
