//! Gemma 4.

mod config;
mod reply;
mod shapes;
pub mod template;
mod tools;

pub(super) use reply::call;

use super::module_paths::{MixturePaths, paths};
use super::{AdapterNames, Family, SamplingDefaults};
use crate::data::tokenizer::{Kind, TokenizerSpec};

/// `general.architecture`.
const NAME: &str = "gemma4";

/// The model that is part of the program: 5.5 M parameters, with every part that gemma4:e2b has.
#[cfg(feature = "native")]
pub(super) const TINY: &[u8] = include_bytes!("../../../models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf");

/// Gemma 4: the text models e2b, e4b, 12b, 26b-a4b and 31b.
pub static FAMILY: Family = Family {
    name: NAME,
    title: "Gemma 4",
    example: "gemma4:e2b",
    config: config::read,
    tokenizer: &TOKENIZER,
    // The models with per-layer embeddings are the small ones.
    template: |config| if config.per_layer_width > 0 { &template::SMALL } else { &template::LARGE },
    sampling: SamplingDefaults { temperature: 1.0, top_k: 64, top_p: 0.95 },
    authors_token: "",
    names: &NAMES,
    shapes: &shapes::SHAPES,
    small_shape: shapes::SMALL,
    metadata: shapes::metadata,
    tensors: shapes::tensors,
};

/// The tokenizer. Source: llama.cpp's pre-tokenizer `gemma4` (`[^\\n]+|[\\n]+`).
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("gemma4", Kind::Lines, "llama.cpp"), ("llama", Kind::Lines, "Ollama")],
    pre: "gemma4",
    bos: "<bos>",
    end_of_text: &["<eos>"],
    required: &["<|turn>", "<turn|>"],
    turn_end: &["<turn|>"],
    control: &["<eos>", "<|tool_response>"],
    // llama.cpp takes these as end of generation, where present.
    end_names: &["<eos>", "<turn|>", "<|tool_response>"],
    reply: &reply::SYNTAX,
};

/// Names of modules in adapter files: transformers' `Gemma4ForCausalLM` and `Gemma4ForConditionalGeneration`, and mlx-lm's
/// `models/gemma4.py`.
static NAMES: AdapterNames = AdapterNames {
    peft: |module| paths(module, &MIXTURE).0,
    mlx: |module| paths(module, &MIXTURE).1,
    causal_lm_layers: "model.layers",
    conditional_generation_layers: "model.language_model.layers",
    mlx_layers: "language_model.model.layers",
    router_is_parameter: false,
    gate_up_alternate: false,
    where_fused: None,
};

const MIXTURE: MixturePaths = MixturePaths {
    router: ("router.proj", &["router.proj"]),
    gate_up: ("experts.gate_up_proj", &["experts.switch_glu.gate_proj", "experts.switch_glu.up_proj"]),
    down: ("experts.down_proj", &["experts.switch_glu.down_proj"]),
};
