//! Gemma 3 text models: 270M, FunctionGemma, 1B, 4B, 12B and 27B.

mod config;
mod reply;
mod shapes;
pub mod template;
mod tokenizer;

use super::{Family, SamplingDefaults, uniform};

pub use tokenizer::TOKENIZER;

/// `general.architecture`.
const NAME: &str = "gemma3";

/// Gemma 3.
pub static FAMILY: Family = Family {
    name: NAME,
    title: "Gemma 3",
    example: "gemma3:1b",
    config: config::read,
    tokenizer: &TOKENIZER,
    template: |_| &template::CHAT,
    sampling: SamplingDefaults { temperature: 1.0, top_k: 64, top_p: 0.95 },
    authors_token: "",
    names: &uniform::NAMES,
    shapes: &shapes::SHAPES,
    small_shape: shapes::SMALL,
    metadata: shapes::metadata,
    tensors: shapes::tensors,
};
