//! Trains LoRA adapters on quantized GGUF models, on any GPU.
//!
//! [`finetune::finetune`] is the short way from samples to an adapter, [`export::load()`] and [`export::write_verified`] the
//! ways in and out; `examples/` has a program for each. Everything that waits for the device is async.
//!
//! Each module imports only from those above it. Shape letters, used everywhere: `T` tokens in the
//! micro-batch, `D` model width, `F` feed-forward width, `P` per-layer embedding width, `H` query heads,
//! `G` key/value heads, `K` head size, `V` vocabulary, `R` rank, `L` layers.

pub mod words;

pub mod files;

pub mod base;
pub mod data;

pub mod families;

pub mod adapter;

pub mod gpu;
pub mod ops;

pub mod memory;

pub mod model;

pub mod train;

pub mod talk;

pub mod export;

pub mod recipe;

pub mod run;

pub mod report;

pub mod reference;
