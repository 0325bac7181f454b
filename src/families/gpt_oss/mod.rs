//! gpt-oss: mixtures of experts in MXFP4, with attention sinks, biases everywhere, and windows in every second layer.

mod config;
mod reply;
mod shapes;
pub mod template;

use super::module_paths::{MixturePaths, paths};
use super::{AdapterNames, Family, SamplingDefaults};
use crate::data::tokenizer::{Kind, TokenizerSpec};

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
    names: &NAMES,
    shapes: &shapes::SHAPES,
    small_shape: shapes::SMALL,
    metadata: shapes::metadata,
    tensors: shapes::tensors,
};

/// The tokenizer of gpt-oss, `o200k_harmony`: byte-level merges. `<|end|>` ends a message and not a reply, which may have several.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("gpt2", Kind::ByteLevel, "llama.cpp")],
    pre: "",
    bos: "",
    end_of_text: &["<|endoftext|>"],
    required: &[],
    turn_end: &["<|return|>"],
    control: &[
        "<|start|>",
        "<|end|>",
        "<|message|>",
        "<|channel|>",
        "<|constrain|>",
        "<|call|>",
        "<|endoftext|>",
    ],
    end_names: &["<|return|>", "<|call|>", "<|endoftext|>"],
    reply: &reply::SYNTAX,
};

/// Names of modules in adapter files: transformers' `GptOssForCausalLM` and mlx-lm's `models/gpt_oss.py`.
static NAMES: AdapterNames = AdapterNames {
    peft: |module| paths(module, &MIXTURE).0,
    mlx: |module| paths(module, &MIXTURE).1,
    causal_lm_layers: "model.layers",
    conditional_generation_layers: "model.language_model.layers",
    mlx_layers: "model.layers",
    router_is_parameter: true,
    gate_up_alternate: true,
    where_fused: None,
};

const MIXTURE: MixturePaths = MixturePaths {
    router: ("mlp.router", &["mlp.router"]),
    gate_up: ("mlp.experts.gate_up_proj", &["mlp.experts.gate_proj", "mlp.experts.up_proj"]),
    down: ("mlp.experts.down_proj", &["mlp.experts.down_proj"]),
};
