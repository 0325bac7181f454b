//! `models`: the models in Ollama's store, and whether they can be trained.

use anyhow::Result;
use clap::Args;
use rullama_train::base::{Base, ollama};
use rullama_train::families;
use serde_json::{Value, json};

use super::output;

/// Options of `models`.
#[derive(Args)]
pub struct ModelsArgs {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A model that can be named in `model.base`.
pub struct Found {
    name: String,
    /// Size of the weights in bytes, if they are on this machine.
    size: Option<u64>,
    /// The shape, or why the model cannot be trained.
    shape: Result<String, String>,
}

impl Found {
    /// Opens the model `name`: "tiny", an Ollama tag, or the path of a .gguf file.
    pub fn of(name: String) -> Found {
        let stored = match name.as_str() {
            "tiny" => None,
            _ => ollama::resolve(&name, &ollama::stores()).ok().and_then(|path| path.metadata().ok()),
        };
        let shape = Base::open(&name);
        let built_in = shape.as_ref().ok().map(|base| base.gguf().bytes().len() as u64);
        let shape = shape.map(|base| shape_of(&base)).map_err(|error| {
            // The line starts with the name already.
            let error = error.to_string();
            error.split_once(": ").map_or(error.clone(), |(_, problem)| problem.to_string())
        });
        Found { size: stored.map(|file| file.len()).or(built_in), name, shape }
    }

    /// Its fields as an object.
    pub fn json(&self) -> Value {
        json!({
            "model": self.name, "bytes": self.size, "trainable": self.shape.is_ok(),
            "shape": self.shape.as_ref().ok(), "problem": self.shape.as_ref().err(),
        })
    }
}

/// Layers, width and context of a base, on one line.
pub fn shape_of(base: &Base) -> String {
    let config = base.config();
    let layers = output::count(config.layers.len(), "layer");
    let width = output::grouped(config.width);
    format!("{layers}, width {width}, context {}", output::grouped(config.context_length))
}

/// Names of the models on this machine that can be trained, the built-in one first.
pub fn trainable() -> Vec<String> {
    all().into_iter().filter(|found| found.shape.is_ok()).map(|found| found.name).collect()
}

/// The built-in model and the models of every store.
pub fn all() -> Vec<Found> {
    let mut names: Vec<String> = ollama::stores().iter().flat_map(|store| ollama::installed(store)).collect();
    names.sort();
    names.dedup();
    names.insert(0, "tiny".into());
    names.into_iter().map(Found::of).collect()
}

/// Lists the built-in model and the models of every store.
pub fn run(args: &ModelsArgs) -> Result<()> {
    let found = all();
    let stores: Vec<String> = ollama::stores().iter().map(|store| store.display().to_string()).collect();
    if args.json {
        let models = found.iter().map(Found::json);
        output::text(json!({ "stores": stores, "models": models.collect::<Vec<_>>() }));
        return Ok(());
    }
    let width = found.iter().map(|model| model.name.chars().count()).max().unwrap_or(0);
    for Found { name, size, shape } in &found {
        let size = size.map_or("–".into(), output::bytes);
        let verdict = match shape {
            Ok(shape) => format!("can be trained: {shape}"),
            Err(problem) => format!("cannot be trained: {problem}"),
        };
        let built_in = if name == "tiny" { " (built in)" } else { "" };
        output::row(&format!("{name:<width$}  {size:>10}  "), &format!("{verdict}{built_in}"));
    }
    if found.len() == 1 {
        let stores = stores.join(", ");
        output::text(format_args!(
            "\nno Ollama models found in {stores}; run `ollama pull {}`, or set OLLAMA_MODELS",
            families::ALL[0].example
        ));
    }
    Ok(())
}
