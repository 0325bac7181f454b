//! Qwen 3.5, 3.6 and 3.8, dense and as a mixture of experts: three layers with gated delta nets to one with attention.

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
/// `general.architecture` of the mixtures.
pub const NAME_MOE: &str = "qwen35moe";

/// The dense models, from 0.8B to 27B.
pub static FAMILY: Family = Family {
    name: NAME,
    title: "Qwen 3.5",
    example: "qwen3.5:4b",
    config: |gguf| config::config(gguf, NAME),
    tokenizer: &TOKENIZER,
    template: |_| &template::CHAT,
    sampling: SamplingDefaults { temperature: 0.6, top_k: 20, top_p: 0.95 },
    authors_token: "",
    names: &names::NAMES,
    shapes: &shapes::SHAPES,
    small_shape: shapes::SMALL,
    metadata: shapes::metadata,
    tensors: shapes::tensors,
};

/// The mixtures of experts, with a shared expert beside the routed ones, such as 35B-A3B.
pub static FAMILY_MOE: Family = Family {
    name: NAME_MOE,
    title: "Qwen 3.5 mixture of experts",
    example: "qwen3.5:35b",
    config: |gguf| config::config(gguf, NAME_MOE),
    template: |_| &template::CHAT_MOE,
    shapes: &shapes::SHAPES_MOE,
    small_shape: shapes::SMALL_MOE,
    ..FAMILY
};
