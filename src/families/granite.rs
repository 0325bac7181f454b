//! Granite 3: Llama's layers with four scalars.

use super::chat_layout::{Turns, turns};
use super::metadata::Keys;
use super::uniform::{self, Traits};
use super::{Family, Shape, USUAL_SAMPLING, llama, tool_calls};
use crate::base::config::Config;
use crate::base::gguf::value::Value;
use crate::base::{Error, Gguf};
use crate::data::template::{BuiltIn, ReplySyntax};
use crate::data::tokenizer::{END_NAMES, Kind, TokenizerSpec};

const TRAITS: Traits = Traits { name: "granite", ..llama::TRAITS };

/// Granite 3.0 to 3.3.
pub static FAMILY: Family = Family {
    name: TRAITS.name,
    title: "Granite 3",
    example: "granite3.3:2b",
    config,
    tokenizer: &TOKENIZER,
    template: |_| &CHAT,
    sampling: USUAL_SAMPLING,
    authors_token: "",
    names: &uniform::NAMES,
    shapes: &SHAPES,
    small_shape: Shape { family: TRAITS.name, name: "granite-tiny", ..llama::SMALL },
    metadata,
    tensors: |shape| uniform::tensors(shape, &TRAITS),
};

/// The shape of the model in `gguf`; an error where the keys make no sense. Source: llama.cpp `src/models/granite.cpp`.
///
/// Every block's output has the factor `r` (`residual_scale`) before it is added to the stream. So the stream is computed divided by `r`: its
/// start has the factor `1/r`, and its norms, which no factor changes, `ε/r²`. The head reads a norm, and so the same values.
fn config(gguf: &Gguf) -> Result<Config, Error> {
    let mut config = uniform::config(gguf, &TRAITS)?;
    let keys = Keys { gguf, architecture: TRAITS.name };
    let factor = |name: &str| Ok::<_, Error>(keys.positive_or(name, 1.0)?.unwrap_or(1.0));
    let residual = f64::from(factor("residual_scale")?);
    config.embedding_scale = (f64::from(factor("embedding_scale")?) / residual) as f32;
    config.rms_eps = (f64::from(config.rms_eps) / residual.powi(2)) as f32;
    config.logit_scale = (1.0 / f64::from(factor("logit_scale")?)) as f32;
    if gguf.get::<bool>(&keys.key("rope.scaling.finetuned"))? == Some(false) {
        config.layers.iter_mut().for_each(|layer| layer.turns = false);
    }
    Ok(config)
}

/// Source: transformers' configurations of IBM's checkpoints.
const SHAPES: [Shape; 1] = [Shape {
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
}];

/// Metadata of a file of this shape.
fn metadata(shape: &Shape) -> Vec<(String, Value)> {
    let mut metadata = uniform::metadata(shape, 1e7);
    let scalars = [
        ("embedding_scale", 12.0),
        ("residual_scale", 0.22),
        ("attention.scale", 0.015_625),
        ("logit_scale", 8.0),
    ];
    metadata.extend(scalars.map(|(key, value)| (format!("{}.{key}", TRAITS.name), Value::F32(value))));
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
