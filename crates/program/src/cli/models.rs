//! `models`: the models on this machine, and whether they can be trained.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use pollster::block_on;
use rullama_train::base::formats::file_type_name;
use rullama_train::base::stores::{self, Stored};
use rullama_train::base::{Base, Gguf};
use rullama_train::families;
use rullama_train::gpu::{Gpu, GpuOptions};
use serde_json::{Value, json};

use super::{bench, output};

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
    store: &'static str,
    path: Option<PathBuf>,
    /// Size of the weights in bytes, if they are on this machine.
    size: Option<u64>,
    /// Architecture, and type of the weights as `llama-quantize` names it.
    architecture: Option<String>,
    weights: Option<String>,
    /// The shape, or why the model cannot be trained.
    shape: Result<String, String>,
    /// GPU memory of the smallest plan, where it was made.
    memory: Option<u64>,
}

/// Facts that a file's header has, whether the model can be trained or not.
#[derive(Default)]
struct Kind {
    size: Option<u64>,
    architecture: Option<String>,
    weights: Option<String>,
}

impl Kind {
    fn of(gguf: &Gguf) -> Kind {
        let architecture = gguf.get::<&str>("general.architecture").ok().flatten();
        let weights = gguf.get::<u32>("general.file_type").ok().flatten();
        Kind {
            size: Some(gguf.file_size()),
            architecture: architecture.map(str::to_owned),
            weights: weights.and_then(file_type_name).map(str::to_owned),
        }
    }
}

impl Found {
    /// Describes a stored model. `gpu` plans its training.
    fn of(stored: Stored, gpu: Option<&Gpu>) -> Found {
        let Stored { name, path, store } = stored;
        let file = path.as_deref().and_then(|path| Gguf::open(path).ok());
        let kind = file.as_ref().map(Kind::of);
        let base = match (name.as_str(), file) {
            ("tiny", _) => Base::tiny(),
            (_, Some(gguf)) => Base::from_gguf(gguf, &name),
            _ => Base::open(&name),
        };
        let kind = kind.or_else(|| base.as_ref().ok().map(|base| Kind::of(base.gguf())));
        let Kind { size, architecture, weights } = kind.unwrap_or_default();
        Found {
            size,
            architecture,
            weights,
            memory: base.as_ref().ok().zip(gpu).and_then(|(base, gpu)| bench::smallest(gpu, base).ok()),
            shape: base.map(|base| shape_of(&base)).map_err(|error| {
                // The line starts with the name already.
                let error = error.to_string();
                error.split_once(": ").map_or(error.clone(), |(_, problem)| problem.to_string())
            }),
            name,
            store,
            path,
        }
    }

    /// The model in a file.
    pub fn of_file(path: &Path) -> Found {
        let stored =
            Stored { name: path.to_string_lossy().into_owned(), path: Some(path.into()), store: "folder" };
        Found::of(stored, None)
    }

    /// Its fields as an object.
    pub fn json(&self) -> Value {
        json!({
            "model": self.name, "bytes": self.size, "trainable": self.shape.is_ok(),
            "shape": self.shape.as_ref().ok(), "problem": self.shape.as_ref().err(), "store": self.store, "path": self.path,
            "architecture": self.architecture, "type": self.weights, "trains_in_bytes": self.memory,
        })
    }

    /// Size, architecture, type, memory and shape, or the problem.
    fn about(&self) -> String {
        let kind =
            [&self.architecture, &self.weights].into_iter().flatten().cloned().collect::<Vec<_>>().join(" ");
        let memory =
            self.memory.map_or(String::new(), |bytes| format!(" in {} or more", output::bytes(bytes)));
        match &self.shape {
            Ok(shape) => format!("{kind}, trains{memory}: {shape}"),
            Err(problem) => format!("cannot be trained: {problem}"),
        }
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
    all(None).into_iter().filter(|found| found.shape.is_ok()).map(|found| found.name).collect()
}

/// Whether a model of this name is on this machine.
pub fn is_known(name: &str) -> bool {
    name == "tiny" || stores::models().iter().any(|stored| stored.name == name)
}

/// The built-in model and the models of every store. `gpu` plans their training.
pub fn all(gpu: Option<&Gpu>) -> Vec<Found> {
    let tiny = Stored { name: "tiny".into(), path: None, store: "built in" };
    std::iter::once(tiny).chain(stores::models()).map(|stored| Found::of(stored, gpu)).collect()
}

/// Lists the built-in model and the models of every store.
pub fn run(args: &ModelsArgs) -> Result<()> {
    let gpu = block_on(Gpu::open(GpuOptions::default())).ok();
    // The plan is for GPUs, also where there is none.
    let gpu = gpu.map(|gpu| gpu.with_kernels(gpu.kernels().without_software()));
    let found = all(gpu.as_ref());
    let stores = stores::all();
    if args.json {
        let models = found.iter().map(Found::json);
        let stores = stores.iter().map(|store| json!({ "store": store.title, "folders": store.folders }));
        output::text(json!({ "stores": stores.collect::<Vec<_>>(), "models": models.collect::<Vec<_>>() }));
        return Ok(());
    }
    let width = found.iter().map(|model| model.name.chars().count()).max().unwrap_or(0);
    let mut last = "built in";
    for model in &found {
        if model.store != last {
            last = model.store;
            let store = stores.iter().find(|store| store.title == last);
            let folders = store.map_or(String::new(), |store| stores::listed(&store.folders));
            output::text(format_args!("\n{last}, {folders}"));
        }
        let Found { name, size, .. } = model;
        let size = size.map_or("–".into(), output::bytes);
        let built_in = if name == "tiny" { " (built in)" } else { "" };
        output::row(&format!("{name:<width$}  {size:>10}  "), &format!("{}{built_in}", model.about()));
    }
    if found.len() == 1 {
        output::text("\nno other models found; searched were");
        for store in stores.iter().filter(|store| !store.folders.is_empty()) {
            output::line(store.title, stores::listed(&store.folders));
        }
        output::text(format_args!(
            "run `ollama pull {}`, `rullama-train pull hf:ORG/REPO:TYPE`, or set OLLAMA_MODELS, HF_HOME or RULLAMA_MODELS",
            families::ALL[0].example
        ));
    }
    Ok(())
}
