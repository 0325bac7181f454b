//! `example`: the recipes for the built-in model, with their samples, for programs that came without the repository.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use rullama_train::{files, recipe};
use serde_json::json;

use super::output;

/// Options of `example`.
#[derive(Args)]
pub struct ExampleArgs {
    /// The task.
    #[arg(default_value = "chat", value_parser = ["chat", "labels", "preference", "stories", "tools"])]
    name: String,
    /// Folder to write recipes/ and datasets/ into.
    #[arg(long, value_name = "DIR", default_value = ".")]
    into: PathBuf,
    /// Overwrite existing files.
    #[arg(long)]
    force: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Writes the files. Existing ones with another text are refused.
pub fn run(args: &ExampleArgs) -> Result<()> {
    let shipped = recipe::example(&args.name);
    let place = |path: &str| if args.into == Path::new(".") { path.into() } else { args.into.join(path) };
    for (path, text) in shipped {
        let place = place(path);
        if !args.force && std::fs::read(&place).is_ok_and(|found| found != text.as_bytes()) {
            bail!(
                "{} exists; choose another folder with --into, or overwrite it with --force",
                place.display()
            );
        }
    }
    for (path, text) in shipped {
        files::write_atomic(&place(path), text.as_bytes())?;
    }
    let [recipe, samples] = shipped.map(|(path, _)| place(path));
    if args.json {
        output::text(json!({ "recipe": recipe, "samples": samples }));
        return Ok(());
    }
    output::line("recipe", recipe.display());
    output::line("samples", samples.display());
    // The recipe names its samples from the folder.
    let folder =
        if args.into == Path::new(".") { String::new() } else { format!("cd {} && ", args.into.display()) };
    output::line("next", format_args!("{folder}rullama-train {}", shipped[0].0));
    Ok(())
}
