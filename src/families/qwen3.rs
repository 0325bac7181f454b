//! Qwen 3, dense and as a mixture of experts.

use super::chat_layout::{CHATML, CHATML_TOKENS, turns};
use super::uniform::{self, Traits};
use super::{Family, SamplingDefaults, Shape, tool_calls};
use crate::data::template::BuiltIn;
use crate::data::tokenizer::{END_NAMES, Kind, TokenizerSpec};

pub(super) const DENSE: Traits = Traits { name: "qwen3", qk_norm: true, ..Traits::PLAIN };
const MIXTURE: Traits = Traits { name: "qwen3moe", ..DENSE };

/// Qwen 3 from 0.6B to 32B, and the R1 distillations on it.
pub static FAMILY: Family = Family {
    name: DENSE.name,
    title: "Qwen 3",
    example: "qwen3:8b",
    config: |gguf| uniform::config(gguf, &DENSE),
    tokenizer: &TOKENIZER,
    template: |_| &CHAT,
    sampling: SamplingDefaults { temperature: 0.6, top_k: 20, top_p: 0.95 },
    authors_token: "",
    names: &uniform::NAMES,
    shapes: &SHAPES,
    small_shape: SMALL,
    metadata: |shape| uniform::metadata(shape, 1e6),
    tensors: |shape| uniform::tensors(shape, &DENSE),
};

/// Qwen 3 30B-A3B, 235B-A22B and Coder.
pub static FAMILY_MOE: Family = Family {
    name: MIXTURE.name,
    title: "Qwen 3 mixture of experts",
    example: "qwen3:30b",
    config: |gguf| uniform::config(gguf, &MIXTURE),
    tokenizer: &TOKENIZER,
    template: |_| &CHAT_MOE,
    sampling: SamplingDefaults { temperature: 0.6, top_k: 20, top_p: 0.95 },
    authors_token: "",
    names: &uniform::NAMES,
    shapes: &SHAPES_MOE,
    small_shape: SMALL_MOE,
    metadata: |shape| uniform::metadata(shape, 1e6),
    tensors: |shape| uniform::tensors(shape, &MIXTURE),
};

const SMALLEST: Shape = Shape {
    family: DENSE.name,
    name: "qwen3-0.6b",
    layers: 28,
    width: 1024,
    ffn_width: 3072,
    heads: 16,
    kv_heads: [8, 8],
    vocab: 151_936,
    context_length: 40_960,
    ..uniform::DENSE
};

/// Source: transformers' configurations of Qwen's checkpoints.
pub(super) const SHAPES: [Shape; 3] = [
    SMALLEST,
    Shape { name: "qwen3-4b", layers: 36, width: 2560, ffn_width: 9728, heads: 32, ..SMALLEST },
    Shape {
        name: "qwen3-8b",
        layers: 36,
        width: 4096,
        ffn_width: 12_288,
        heads: 32,
        tied: false,
        ..SMALLEST
    },
];

pub(super) const SHAPES_MOE: [Shape; 1] = [Shape {
    family: MIXTURE.name,
    name: "qwen3-30b-a3b",
    layers: 48,
    width: 2048,
    ffn_width: 6144,
    heads: 32,
    kv_heads: [4, 4],
    experts: Some([128, 8, 768]),
    tied: false,
    ..SMALLEST
}];

/// A few megabytes, for software renderers.
pub(super) const SMALL: Shape = Shape {
    name: "qwen3-tiny",
    layers: 4,
    width: 256,
    ffn_width: 768,
    heads: 4,
    kv_heads: [2, 2],
    head_sizes: [64, 64],
    vocab: 2048,
    context_length: 1024,
    ..SMALLEST
};

pub(super) const SMALL_MOE: Shape =
    Shape { family: MIXTURE.name, name: "qwen3moe-tiny", experts: Some([8, 2, 256]), tied: false, ..SMALL };

/// ChatML. Reasoning stands in `<think>` in front of the answer to the last question.
pub static CHAT: BuiltIn = turns!("qwen3", "ChatML", CHATML_TOKENS, CHATML);

/// The layout of the mixtures of experts.
pub static CHAT_MOE: BuiltIn = turns!("qwen3moe", "ChatML", CHATML_TOKENS, CHATML);

/// The tokenizer, by byte-level merges, of Qwen 2, 2.5 and 3, and of the DeepSeek R1 distillations on them.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("gpt2", Kind::ByteLevel, "llama.cpp and Ollama")],
    pre: "",
    bos: "",
    end_of_text: &["<｜end▁of▁sentence｜>", "<|endoftext|>"],
    required: &[],
    turn_end: &["<|im_end|>"],
    control: &["<|im_start|>"],
    end_names: END_NAMES,
    reply: &tool_calls::QWEN,
};
