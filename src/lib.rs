//! Trains LoRA adapters on quantized Gemma 4 GGUF files, on any GPU.
//!
//! [`finetune::finetune`] is the short way from samples to an adapter, [`export::load()`] and [`export::write_verified`] the
//! ways in and out; `examples/` has a program for each. Everything that waits for the device is async.
//!
//! The modules stand in the order in which data flows. Shape letters, used everywhere: `T` tokens in the
//! micro-batch, `D` model width, `F` feed-forward width, `P` per-layer embedding width, `H` query heads,
//! `G` key/value heads, `K` head size, `V` vocabulary, `R` rank, `L` layers.

pub mod recipe;

pub mod dataset;
pub mod template;
pub mod tokenizer;

pub mod batch;

pub mod config;
pub mod lora;
pub mod weights;

pub mod gpu;
pub mod ops;

pub mod model;

pub mod reference;

pub mod schedule;
pub mod train;

pub mod checkpoint;
pub mod digest;
pub mod health;
pub mod metrics;
pub mod report;
pub mod tensorboard;
pub mod words;

pub mod conversation;
pub mod finetune;
pub mod sampling;

pub mod generate;
pub mod run;

pub mod export;
#[cfg(feature = "native")]
pub mod files;
/// Files in memory, where there is no disk.
#[cfg(not(feature = "native"))]
#[path = "files/memory.rs"]
pub mod files;
