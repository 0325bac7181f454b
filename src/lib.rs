//! Trains LoRA adapters on quantized GGUF models, on any GPU.
//!
//! The base model stays quantized, in the GGUF file that Ollama or llama.cpp runs. The result is an adapter that PEFT, llama.cpp,
//! mlx-lm and others load.
//!
//! # Training an adapter
//!
//! ```no_run
//! use pollster::block_on;
//! use rullama_train::adapter::{self, Format};
//! use rullama_train::gpu::{Gpu, GpuOptions};
//! use rullama_train::recipe::Recipe;
//! use rullama_train::run::finetune::{finetune, samples};
//! use rullama_train::run::{OpenBase, write_options};
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
//! adapter::write("runs/ahoy".as_ref(), Format::Peft, &adapter, base.base.config(), &options)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Where to start
//!
//! | task | start with | example |
//! |---|---|---|
//! | train | [`run::finetune`] | `examples/train.rs` |
//! | load adapters for a base | [`adapter::load()`] | `examples/load.rs` |
//! | convert or merge an adapter | [`verify::write_verified`], [`adapter::merge`] | `examples/export.rs` |
//! | generate text | [`talk::generate`] | `examples/generate.rs` |
//! | compute logits | [`verify::logits()`] | `examples/logits.rs` |
//!
//! Functions that wait for the device are async. The library prints nothing and never blocks on the device, so it also runs in
//! a browser.
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

pub mod base;

#[cfg(feature = "native")]
pub mod hub;

pub mod data;

pub mod families;

pub mod adapter;

pub mod gpu;

#[doc(hidden)]
pub mod ops;

#[doc(hidden)]
pub mod memory;

pub mod model;

pub mod train;

pub mod talk;

pub mod verify;

pub mod recipe;

pub mod rewards;

pub mod run;

#[doc(hidden)]
pub mod report;

#[doc(hidden)]
pub mod reference;

pub mod selftest;
