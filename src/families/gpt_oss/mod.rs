//! gpt-oss: mixtures of experts in MXFP4, with attention sinks, biases everywhere, and windows in every second layer.

mod config;
mod names;
mod reply;
mod shapes;
pub mod template;
mod tokenizer;

use super::{Family, SamplingDefaults};

pub use tokenizer::TOKENIZER;

/// `general.architecture`.
const NAME: &str = "gpt-oss";

/// gpt-oss 20b and 120b.
pub static FAMILY: Family = Family {
    name: NAME,
    title: "gpt-oss",
    example: "hf.co/ggml-org/gpt-oss-20b-GGUF",
    config: config::read,
    tokenizer: &TOKENIZER,
    template: |_| &template::HARMONY,
    sampling: SamplingDefaults { temperature: 1.0, top_k: 0, top_p: 1.0 },
    authors_token: "",
    names: &names::NAMES,
    shapes: &shapes::SHAPES,
    small_shape: shapes::SMALL,
    metadata: shapes::metadata,
    tensors: shapes::tensors,
};
