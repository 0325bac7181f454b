//! From files of samples to packed micro-batches of tokens.

pub mod batch;
pub mod dataset;
pub mod template;
pub mod tokenizer;
