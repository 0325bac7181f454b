//! From files of samples to packed micro-batches of tokens.

pub mod batch;
mod catch_panic;
pub mod compare;
pub mod dataset;
pub(crate) mod digits;
pub mod loss_spans;
mod micro_batch;
pub mod rollout;
mod sample;
pub mod step;
pub mod teacher;
pub mod template;
pub mod tokenizer;

pub use digits::{parse as parse_json, to_json};
