//! Granite 3, dense and as a mixture of experts, and the dense models of Granite 4: Llama's layers with four scalars.

use super::chat_layout::{Turns, turns};
use super::metadata::Keys;
use super::module_paths::{MixturePaths, paths};
use super::uniform::{self, Traits};
use super::{AdapterNames, Family, Shape, USUAL_SAMPLING, llama, tool_calls};
use crate::base::config::Config;
use crate::base::gguf::value::Value;
use crate::base::{Error, Gguf, Module};
use crate::data::template::{BuiltIn, ReplySyntax};
use crate::data::tokenizer::{END_NAMES, Kind, TokenizerSpec};

const TRAITS: Traits = Traits { name: "granite", ..llama::TRAITS };
const MIXTURE: Traits = Traits { name: "granitemoe", ..llama::TRAITS };

/// Granite 3.0 to 3.3, and the dense models of Granite 4.
pub static FAMILY: Family = Family {
    name: TRAITS.name,
    title: "Granite 3 and 4",
    example: "granite3.3:2b",
    config: |gguf| config(gguf, &TRAITS),
    tokenizer: &TOKENIZER,
    template: |_| &CHAT,
    sampling: USUAL_SAMPLING,
    authors_token: "",
    names: &NAMES,
    shapes: &SHAPES,
    small_shape: Shape { family: TRAITS.name, name: "granite-tiny", ..llama::SMALL },
    metadata,
    tensors: |shape| uniform::tensors(shape, &TRAITS),
};

/// Granite 3.0 and 3.1 1B-A400M and 3B-A800M.
pub static FAMILY_MOE: Family = Family {
    name: MIXTURE.name,
    title: "Granite 3 mixture of experts",
    example: "granite3.1-moe:3b",
    config: |gguf| config(gguf, &MIXTURE),
    template: |_| &CHAT_MOE,
    names: &NAMES_MOE,
    shapes: &SHAPES_MOE,
    small_shape: SMALL_MOE,
    ..FAMILY
};

/// The shape of the model in `gguf`; an error where the keys make no sense. Source: llama.cpp `src/models/granite.cpp`.
///
/// Every block's output has the factor `r` (`residual_scale`) before it is added to the stream. So the stream is computed divided by `r`: its
/// start has the factor `1/r`, and its norms, which no factor changes, `ε/r²`. The head reads a norm, and so the same values.
fn config(gguf: &Gguf, traits: &Traits) -> Result<Config, Error> {
    let mut config = uniform::config(gguf, traits)?;
    let keys = Keys { gguf, architecture: traits.name };
    let factor = |name: &str| Ok::<_, Error>(keys.positive_or(name, 1.0)?.unwrap_or(1.0));
    let residual = f64::from(factor("residual_scale")?);
    config.embedding_scale = (f64::from(factor("embedding_scale")?) / residual) as f32;
    config.rms_eps = (f64::from(config.rms_eps) / residual.powi(2)) as f32;
    config.logit_scale = (1.0 / f64::from(factor("logit_scale")?)) as f32;
    // Granite 4: transformers' class is that of the hybrid models, which has gate and up as one matrix. Files have them apart.
    if keys.integer("expert_shared_feed_forward_length")?.is_some() {
        let dense = config.layers.iter_mut().filter(|layer| layer.experts.is_none());
        dense.for_each(|layer| layer.fused = vec![Module::FfnGateUp]);
    }
    if gguf.get::<bool>(&keys.key("rope.scaling.finetuned"))? == Some(false) {
        config.layers.iter_mut().for_each(|layer| layer.turns = false);
    }
    Ok(config)
}

/// Source: transformers' configurations of IBM's checkpoints.
const SHAPES: [Shape; 2] = [
    Shape {
        family: TRAITS.name,
        name: "granite3.3-2b",
        layers: 40,
        width: 2048,
        ffn_width: 8192,
        heads: 32,
        kv_heads: [8, 8],
        head_sizes: [64, 64],
        vocab: 49_159,
        context_length: 131_072,
        ..uniform::DENSE
    },
    Shape {
        family: TRAITS.name,
        name: "granite4-micro",
        layers: 40,
        width: 2560,
        ffn_width: 8192,
        heads: 40,
        kv_heads: [8, 8],
        head_sizes: [64, 64],
        shared_ffn_width: 8192,
        vocab: 100_352,
        context_length: 131_072,
        ..uniform::DENSE
    },
];

const SHAPES_MOE: [Shape; 2] = [
    Shape {
        family: MIXTURE.name,
        name: "granite3.1-1b-a400m",
        layers: 24,
        width: 1024,
        ffn_width: 512,
        heads: 16,
        vocab: 49_155,
        experts: Some([32, 8, 512]),
        ..SHAPES[0]
    },
    Shape {
        family: MIXTURE.name,
        name: "granite3.1-3b-a800m",
        layers: 32,
        width: 1536,
        ffn_width: 512,
        heads: 24,
        vocab: 49_155,
        experts: Some([40, 8, 512]),
        ..SHAPES[0]
    },
];

/// A few megabytes, for software renderers.
const SMALL_MOE: Shape =
    Shape { family: MIXTURE.name, name: "granitemoe-tiny", experts: Some([8, 2, 256]), ..llama::SMALL };

/// Metadata of a file of this shape.
fn metadata(shape: &Shape) -> Vec<(String, Value)> {
    let mut metadata = uniform::metadata(shape, 1e7);
    let scalars = [
        ("embedding_scale", 12.0),
        ("residual_scale", 0.22),
        ("attention.scale", 0.015_625),
        ("logit_scale", 8.0),
    ];
    metadata.extend(scalars.map(|(key, value)| (format!("{}.{key}", shape.family), Value::F32(value))));
    metadata
}

static TURNS: Turns = Turns {
    start: "",
    header: ("<|start_of_role|>", "<|end_of_role|>"),
    end: "<|end_of_text|>",
    after: "\n",
    assistant: "assistant",
    system_in_question: false,
    trims: false,
    thought: None,
};

/// `<|start_of_role|>ROLE<|end_of_role|>CONTENT<|end_of_text|>\n`.
pub static CHAT: BuiltIn =
    turns!("granite", "Granite", &["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"], TURNS);

/// The layout of the mixtures of experts.
pub static CHAT_MOE: BuiltIn =
    turns!("granitemoe", "Granite", &["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"], TURNS);

/// Names of modules in adapter files: Llama's, and those of Granite 4.
static NAMES: AdapterNames = AdapterNames { where_fused: Some(&NAMES_4), ..uniform::NAMES };

/// Names of modules in adapter files: transformers' `GraniteMoeHybridForCausalLM`, and mlx-lm's `models/granitemoehybrid.py`, which has gate
/// and up of dense models apart.
static NAMES_4: AdapterNames = AdapterNames {
    peft: |module| match module {
        Module::FfnGateUp => "shared_mlp.input_linear",
        Module::FfnDown => "shared_mlp.output_linear",
        _ => (uniform::NAMES.peft)(module),
    },
    mlx: |module| match module {
        Module::FfnGateUp => &["mlp.gate_proj", "mlp.up_proj"],
        _ => (uniform::NAMES.mlx)(module),
    },
    ..uniform::NAMES
};

/// Names of modules in adapter files: transformers' `GraniteMoeForCausalLM` and mlx-lm's `models/granitemoe.py`.
static NAMES_MOE: AdapterNames = AdapterNames {
    peft: |module| paths(module, &PATHS).0,
    mlx: |module| paths(module, &PATHS).1,
    ..uniform::NAMES
};

const PATHS: MixturePaths = MixturePaths {
    router: ("block_sparse_moe.router", &["block_sparse_moe.router.layer"]),
    gate_up: (
        "block_sparse_moe.experts.gate_up_proj",
        &["block_sparse_moe.switch_mlp.gate_proj", "block_sparse_moe.switch_mlp.up_proj"],
    ),
    down: ("block_sparse_moe.experts.down_proj", &["block_sparse_moe.switch_mlp.down_proj"]),
};

/// The tokenizer of Granite, by byte-level merges.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("gpt2", Kind::ByteLevel, "llama.cpp and Ollama")],
    pre: "",
    bos: "",
    end_of_text: &["<|end_of_text|>", "<|endoftext|>"],
    required: &[],
    turn_end: &["<|end_of_text|>"],
    control: &["<|start_of_role|>", "<|end_of_role|>"],
    end_names: END_NAMES,
    reply: &REPLIES,
};

/// Marks of reasoning and function calls in replies: Granite 3 writes a list of calls behind `<|tool_call|>`; other templates write as Qwen does.
static REPLIES: ReplySyntax =
    ReplySyntax { calls: &[("<|tool_call|>", ""), ("<tool_call>", "</tool_call>")], ..tool_calls::QWEN };
