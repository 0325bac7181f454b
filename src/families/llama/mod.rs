//! Llama 3 and the models that share its architecture: Mistral 7B, SmolLM2, R1 distillations and others.

pub(super) mod reply;
pub mod template;
mod tokenizer;

use super::uniform::{self, Traits};
use super::{Family, SamplingDefaults, Shape};

pub use tokenizer::TOKENIZER;

const TRAITS: Traits = Traits { name: "llama", qk_norm: false, interleaved: true, biases: &[] };

/// Llama and its like. Mixtures such as Mixtral have experts in every layer.
pub static FAMILY: Family = Family {
    name: TRAITS.name,
    title: "Llama",
    example: "llama3.1:8b",
    config: |gguf| uniform::config(gguf, &TRAITS),
    tokenizer: &TOKENIZER,
    template: |_| &template::CHAT,
    sampling: SamplingDefaults { temperature: 0.6, top_k: 50, top_p: 0.9 },
    authors_token: "<|eot_id|>",
    names: &uniform::NAMES,
    shapes: &SHAPES,
    small_shape: SMALL,
    metadata: |shape| uniform::metadata(shape, 5e5),
    tensors: |shape| uniform::tensors(shape, &TRAITS),
};

const SMALLEST: Shape = Shape {
    family: TRAITS.name,
    name: "llama3.2-1b",
    layers: 16,
    width: 2048,
    ffn_width: 8192,
    heads: 32,
    kv_heads: [8, 8],
    head_sizes: [64, 64],
    vocab: 128_256,
    context_length: 131_072,
    ..uniform::DENSE
};

/// Source: transformers' configurations of Meta's checkpoints.
const SHAPES: [Shape; 2] = [
    SMALLEST,
    Shape {
        name: "llama3.1-8b",
        layers: 32,
        width: 4096,
        ffn_width: 14_336,
        head_sizes: [128, 128],
        tied: false,
        ..SMALLEST
    },
];

/// A few megabytes, for software renderers.
const SMALL: Shape = Shape {
    name: "llama-tiny",
    layers: 4,
    width: 256,
    ffn_width: 768,
    heads: 4,
    kv_heads: [2, 2],
    vocab: 2048,
    context_length: 1024,
    ..SMALLEST
};
