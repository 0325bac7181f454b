//! Trains LoRA adapters on quantized GGUF models, on any GPU.
//!
//! The base model stays quantized, in the GGUF file that Ollama or llama.cpp runs. The result is an adapter that PEFT, llama.cpp,
//! mlx-lm and others load.
//!
//! # Training an adapter
//!
//! ```no_run
//! use pollster::block_on;
//! use rullama_train::{Format, Gpu, GpuOptions, OpenBase, Recipe, finetune, samples, write_adapter, write_options};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // All settings with their defaults; "tiny" is the model that comes with the crate.
//! let mut recipe = Recipe::new("tiny");
//! recipe.lora.rank = 8;
//! recipe.train.learning_rate = 1e-2;
//!
//! let base = OpenBase::open(&recipe)?;
//! let text = r#"{"prompt": "Hello!", "completion": "Ahoy!"}"#;
//! let samples = samples(&base, &recipe, text, "samples.jsonl")?;
//!
//! let gpu = block_on(Gpu::open(GpuOptions::default()))?;
//! let training = finetune(&gpu, &base, &samples, &recipe, |progress| {
//!     println!("step {}: loss {:?}", progress.step, progress.metrics.loss);
//! });
//! let adapter = block_on(training)?;
//!
//! let fingerprint = base.fingerprint.to_string();
//! let options = write_options(&recipe, &fingerprint, base.base.vocabulary());
//! write_adapter("runs/ahoy".as_ref(), Format::Peft, &adapter, base.base.config(), &options)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Where to start
//!
//! | task | start with | example |
//! |---|---|---|
//! | train | [`finetune`] | `examples/train.rs` |
//! | load adapters for a base | [`load_adapters`] | `examples/load.rs` |
//! | convert or merge an adapter | [`write_verified`], [`merge`] | `examples/export.rs` |
//! | generate text | [`generate`] | `examples/generate.rs` |
//! | compute logits | [`Trainer::logits`] | `examples/logits.rs` |
//!
//! Functions that wait for the device are async. The library prints nothing and never blocks on the device, so it also runs in
//! a browser.
//!
//! # What is public
//!
//! The items on this page. The modules behind them are public for the program, the page and the tests alone: they are not
//! documented here, and change with any version.
//!
//! # Conventions
//!
//! Each module imports only from modules listed before it in `src/lib.rs`. Shape letters are the same everywhere: `T` tokens in
//! the micro-batch, `D` model width, `F` feed-forward width, `P` per-layer embedding width, `H` query heads, `G` key/value heads,
//! `K` head size, `V` vocabulary, `R` rank, `L` layers, `E` experts.
// rustdoc follows the types of wgpu through more than 128 levels.
#![recursion_limit = "256"]

// The order of imports. The blank lines keep rustfmt from sorting it.

#[doc(hidden)]
pub mod words;

#[doc(hidden)]
pub mod files;

#[doc(hidden)]
pub mod base;

#[doc(hidden)]
#[cfg(feature = "native")]
pub mod hub;

#[doc(hidden)]
pub mod data;

#[doc(hidden)]
pub mod families;

#[doc(hidden)]
pub mod adapter;

#[doc(hidden)]
pub mod gpu;

#[doc(hidden)]
pub mod ops;

#[doc(hidden)]
pub mod memory;

#[doc(hidden)]
pub mod model;

#[doc(hidden)]
pub mod train;

#[doc(hidden)]
pub mod talk;

#[doc(hidden)]
pub mod verify;

#[doc(hidden)]
pub mod recipe;

#[doc(hidden)]
pub mod rewards;

#[doc(hidden)]
pub mod run;

#[doc(hidden)]
pub mod report;

#[doc(hidden)]
pub mod reference;

#[doc(hidden)]
pub mod cases;

#[doc(hidden)]
pub mod selftest;

// The items that are documented; tests/layers counts them. A device:

#[doc(inline)]
pub use gpu::{Backend, Gpu, GpuError, GpuOptions};

// A base and settings:

#[doc(inline)]
pub use base::{Base, Error as BaseError, Gguf};
#[doc(inline)]
pub use data::tokenizer::Tokenizer;
#[doc(inline)]
pub use recipe::{Recipe, RecipeError};
#[doc(inline)]
pub use run::{OpenBase, RunError};

/// The sections of a [`Recipe`]. Their fields are the keys that `docs/recipes.md` describes.
pub mod sections {
    #[doc(inline)]
    pub use crate::recipe::{Data, Device, Eval, Lora, Model, Output, Train};
}

// Samples and training:

#[doc(inline)]
pub use data::batch::{Capacity, IGNORE, MicroBatch, Sample};
#[doc(inline)]
pub use data::dataset::DatasetError;
#[doc(inline)]
pub use model::Model;
#[doc(inline)]
pub use model::plan::{Offload, Recompute};
#[doc(inline)]
pub use run::finetune::{FinetuneError, Progress, finetune, samples};
#[doc(inline)]
pub use run::metrics::StepMetrics;
#[doc(inline)]
pub use train::{Dropout, TrainError, Trainer};

// Adapters:

#[doc(inline)]
pub use adapter::lora::Adapter;
#[doc(inline)]
pub use adapter::merge::{MergeType, write as merge};
#[doc(inline)]
pub use adapter::{AdapterPath, Error as AdapterError, Format, Loaded, OtherBase, WriteOptions};
#[doc(inline)]
pub use adapter::{load as load_adapters, write as write_adapter};
#[doc(inline)]
pub use run::write_options;
#[doc(inline)]
pub use verify::{Error as VerifyError, Exported, HeldOut, compare_merged, write_verified};

// Replies:

#[doc(inline)]
pub use talk::generate::{GenerateError, greedy as generate};
