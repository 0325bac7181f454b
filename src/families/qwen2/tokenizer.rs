//! Qwen 2's tokenizer is that of Qwen 3.

pub use crate::families::qwen3::TOKENIZER;
