//! From files of samples to packed micro-batches of tokens.

pub mod batch;
mod caught;
pub mod compare;
pub mod dataset;
pub(crate) mod digits;
mod micro_batch;
pub mod pieces;
mod sample;
pub mod step;
pub mod template;
pub mod tokenizer;

pub use digits::{parse as parse_json, to_json};
