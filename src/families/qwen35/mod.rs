//! Qwen 3.5, 3.6 and 3.8, dense and as a mixture of experts: three layers with gated delta nets to one with attention.

mod config;
mod reply;
mod shapes;
pub mod template;
mod tools;

use super::{AdapterNames, Family, SamplingDefaults, qwen3, uniform};
use crate::data::tokenizer::TokenizerSpec;
pub(super) use reply::SYNTAX as REPLIES;

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
    names: &NAMES,
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

/// The tokenizer of Qwen 3.5, 3.6 and 3.8: that of Qwen 3 with other functions in replies. The pre-tokenizer, which keeps combining marks
/// with their letters, is the file's (`qwen35`).
pub static TOKENIZER: TokenizerSpec = TokenizerSpec { reply: &reply::SYNTAX, ..qwen3::TOKENIZER };

/// Names of modules in adapter files: transformers' `Qwen3_5ForCausalLM` and mlx-lm's `models/qwen3_5.py`, which has the text model inside
/// another one.
static NAMES: AdapterNames = AdapterNames { mlx_layers: "language_model.model.layers", ..uniform::NAMES };
