//! Qwen 3.5, 3.6 and 3.8: three layers with gated delta nets to one with attention.

mod config;
mod names;
mod reply;
mod shapes;
pub mod template;
mod tokenizer;
mod tools;

use super::{Family, SamplingDefaults};

pub use tokenizer::TOKENIZER;

/// `general.architecture`.
pub const NAME: &str = "qwen35";

/// The dense models, from 0.8B to 27B.
pub static FAMILY: Family = Family {
    name: NAME,
    title: "Qwen 3.5",
    example: "qwen3.5:4b",
    config: config::config,
    tokenizer: &TOKENIZER,
    template: |_| &template::CHAT,
    sampling: SamplingDefaults { temperature: 0.6, top_k: 20, top_p: 0.95 },
    names: &names::NAMES,
    shapes: &shapes::SHAPES,
    small_shape: shapes::SMALL,
    metadata: shapes::metadata,
    tensors: shapes::tensors,
};
