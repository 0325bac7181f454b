//! One target per reader of foreign bytes: sound inputs, and what must hold for any input.

mod adapters;
mod base;
mod checkpoints;
mod datasets;
pub mod files;
mod replies;
mod requests;
mod samples;
mod teacher;

use std::fmt::Display;
use std::sync::OnceLock;

use rullama_train::base::{Base, Gguf};
use rullama_train::data::tokenizer::Tokenizer;
use rullama_train::recipe::{Recipe, Syntax};

use crate::mutate::GgufWriter;
pub use crate::mutate::Kind;

/// Outcome of a reader for an input.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It took it, and what it read is sound.
    Accepted,
    /// It refused it with this message.
    Refused(String),
    /// It took what it must refuse, or its message is none.
    Wrong(String),
}

/// A reader of foreign bytes.
pub struct Target {
    /// Name of the target and of its folder in `corpus/`.
    pub name: &'static str,
    /// The structure of its inputs.
    pub kind: Kind,
    /// Inputs that it accepts.
    pub sound: fn() -> Vec<Vec<u8>>,
    /// Reads an input, and checks what it read.
    pub read: fn(&[u8]) -> Outcome,
}

/// All targets.
pub static TARGETS: &[Target] = &[
    Target { name: "gguf", kind: Kind::Gguf, sound: base::models, read: base::whole },
    Target { name: "gguf-stream", kind: Kind::Gguf, sound: base::models, read: base::streamed },
    Target { name: "tokenizer", kind: Kind::Gguf, sound: base::vocabularies, read: base::vocabulary },
    Target { name: "gguf-lora", kind: Kind::Gguf, sound: adapters::gguf_loras, read: adapters::gguf_lora },
    Target { name: "peft", kind: FOLDER, sound: adapters::pefts, read: adapters::peft },
    Target { name: "mlx", kind: FOLDER, sound: adapters::mlxs, read: adapters::mlx },
    Target {
        name: "rullama-v0",
        kind: Kind::SafeTensors,
        sound: adapters::rullamas,
        read: adapters::rullama,
    },
    Target { name: "ds-jsonl", kind: Kind::Text, sound: datasets::lines, read: datasets::read },
    Target { name: "ds-array", kind: Kind::Json, sound: datasets::arrays, read: datasets::read },
    Target { name: "ds-gzip", kind: Kind::Gzip, sound: datasets::gzips, read: datasets::read },
    Target { name: "ds-zstd", kind: Kind::Zstd, sound: datasets::zstds, read: datasets::read },
    Target { name: "ds-parquet", kind: Kind::Bytes, sound: datasets::parquets, read: datasets::read },
    Target {
        name: "recipe-toml",
        kind: Kind::Text,
        sound: || recipes(Syntax::Toml),
        read: |input| recipe(input, Syntax::Toml),
    },
    Target {
        name: "recipe-json",
        kind: Kind::Json,
        sound: || recipes(Syntax::Json),
        read: |input| recipe(input, Syntax::Json),
    },
    Target { name: "cache", kind: Kind::Bytes, sound: datasets::caches, read: datasets::cache },
    Target {
        name: "cache-sha",
        kind: Kind::Bytes,
        sound: datasets::cache_contents,
        read: datasets::cache_content,
    },
    Target {
        name: "checkpoint",
        kind: checkpoints::KIND,
        sound: checkpoints::folders,
        read: checkpoints::unchanged,
    },
    Target {
        name: "checkpoint-sha",
        kind: checkpoints::KIND,
        sound: checkpoints::folders,
        read: checkpoints::with_digests,
    },
    Target { name: "teacher", kind: Kind::Bytes, sound: teacher::files, read: teacher::unchanged },
    Target { name: "teacher-sha", kind: Kind::Bytes, sound: teacher::contents, read: teacher::with_digests },
    Target {
        name: "pipelines",
        kind: Kind::Bytes,
        sound: requests::pipeline_files,
        read: requests::pipelines,
    },
    Target { name: "jinja", kind: Kind::Text, sound: replies::templates, read: replies::template },
    Target {
        name: "template-go",
        kind: Kind::Text,
        sound: replies::go_templates,
        read: replies::go_template,
    },
    Target { name: "reply", kind: Kind::Text, sound: replies::replies, read: replies::reply },
    Target { name: "http", kind: Kind::Json, sound: requests::bodies, read: requests::body },
    Target {
        name: "http-completion",
        kind: Kind::Json,
        sound: requests::completions,
        read: requests::completion,
    },
];

const FOLDER: Kind = Kind::Files(&[Kind::Json, Kind::SafeTensors]);

/// Longest message: it may quote an input, but not multiply it. The program prints the start of a long one.
const LONGEST_MESSAGE: usize = 2 * crate::mutate::MOST_BYTES;

/// The target of a name.
pub fn named(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// The outcome of an error.
fn refused(error: impl Display) -> Outcome {
    let message = error.to_string();
    match message.len() {
        0 => Outcome::Wrong("an error without a message".into()),
        1..=LONGEST_MESSAGE => Outcome::Refused(message),
        bytes => Outcome::Wrong(format!(
            "a message of {bytes} bytes: {}",
            message.chars().take(200).collect::<String>()
        )),
    }
}

/// [`Outcome::Accepted`] if `sound`, else the problem.
fn accepted_if(sound: bool, problem: impl FnOnce() -> String) -> Outcome {
    if sound { Outcome::Accepted } else { Outcome::Wrong(problem()) }
}

/// A base of a few kilobytes.
fn small() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    let open =
        || Base::from_gguf(Gguf::from_bytes(GgufWriter::gemma4().bytes(), "small").expect("sound"), "small");
    BASE.get_or_init(|| open().expect("sound"))
}

/// Bases that adapters are read for: the small one, and families with modules of their own.
fn bases() -> impl Iterator<Item = &'static Base> {
    static FAMILIES: OnceLock<Vec<Base>> = OnceLock::new();
    let open =
        |bytes: &[u8]| Base::from_gguf(Gguf::from_bytes(bytes.to_vec(), "family").expect("sound"), "family");
    let families = || base::FAMILIES.map(|bytes| open(bytes).expect("sound")).into();
    std::iter::once(small()).chain(FAMILIES.get_or_init(families))
}

/// The tokenizer of the tiny base.
fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    let open = || Tokenizer::from_gguf(Base::tiny().expect("part of the program").gguf());
    TOKENIZER.get_or_init(|| open().expect("sound"))
}

const RECIPE: &str = include_str!("recipe.toml");

fn recipes(syntax: Syntax) -> Vec<Vec<u8>> {
    let recipe = Recipe::parse(RECIPE, Syntax::Toml, "r.toml", &[("", ""); 0]).expect("sound");
    match syntax {
        Syntax::Toml => vec![RECIPE.into(), recipe.to_toml().into(), recipe.to_resolved_toml().into()],
        Syntax::Json => vec![serde_json::to_vec_pretty(&recipe).expect("plain values")],
    }
}

/// A recipe means the same after it was written and read again.
fn recipe(input: &[u8], syntax: Syntax) -> Outcome {
    let Ok(text) = std::str::from_utf8(input) else { return Outcome::Refused("not UTF-8".into()) };
    let parse = |text: &str, syntax| Recipe::parse(text, syntax, "r.toml", &[("", ""); 0]);
    match parse(text, syntax) {
        Err(error) => refused(error),
        Ok(recipe) => match parse(&recipe.to_resolved_toml(), Syntax::Toml) {
            Ok(again) => {
                accepted_if(again.changes_since(&recipe).is_empty(), || "other values after writing".into())
            }
            Err(error) => Outcome::Wrong(format!("what was written is refused: {error}")),
        },
    }
}
