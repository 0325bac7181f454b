//! Qwen 2 and 2.5. Their tokenizer is that of Qwen 3.

use super::chat_layout::{CHATML, CHATML_TOKENS, turns};
pub use super::qwen3::TOKENIZER;
use super::uniform::{self, Traits};
use super::{Family, SamplingDefaults, Shape};
use crate::base::Module;
use crate::data::template::BuiltIn;

pub(super) const TRAITS: Traits = Traits {
    name: "qwen2",
    qk_norm: false,
    interleaved: false,
    interleaved_elsewhere: false,
    turns_parts: false,
    norms_behind: false,
    norms_around: false,
    qk_norm_of_rows: false,
    qk_norm_behind: false,
    biases: &[Module::AttnQ, Module::AttnK, Module::AttnV],
    fused: &[],
};

/// Qwen 2 and 2.5 from 0.5B to 72B, and the R1 distillations on them.
pub static FAMILY: Family = Family {
    name: TRAITS.name,
    title: "Qwen 2.5",
    example: "qwen2.5:7b",
    config: |gguf| uniform::config(gguf, &TRAITS),
    tokenizer: &TOKENIZER,
    template: |_| &CHAT,
    sampling: SamplingDefaults { temperature: 0.7, top_k: 20, top_p: 0.8 },
    authors_token: "",
    names: &uniform::NAMES,
    shapes: &SHAPES,
    small_shape: SMALL,
    metadata: |shape| uniform::metadata(shape, 1e6),
    tensors: |shape| uniform::tensors(shape, &TRAITS),
};

const SMALLEST: Shape = Shape {
    family: TRAITS.name,
    name: "qwen2.5-0.5b",
    layers: 24,
    width: 896,
    ffn_width: 4864,
    heads: 14,
    kv_heads: [2, 2],
    head_sizes: [64, 64],
    vocab: 151_936,
    context_length: 32_768,
    ..uniform::DENSE
};

/// Source: transformers' configurations of Qwen's checkpoints.
pub(super) const SHAPES: [Shape; 2] = [
    SMALLEST,
    Shape {
        name: "qwen2.5-7b",
        layers: 28,
        width: 3584,
        ffn_width: 18_944,
        heads: 28,
        kv_heads: [4, 4],
        head_sizes: [128, 128],
        tied: false,
        vocab: 152_064,
        ..SMALLEST
    },
];

/// A few megabytes, for software renderers.
pub(super) const SMALL: Shape = Shape {
    name: "qwen2-tiny",
    layers: 4,
    width: 256,
    ffn_width: 768,
    heads: 4,
    kv_heads: [2, 2],
    vocab: 2048,
    context_length: 1024,
    ..SMALLEST
};

/// ChatML. Reasoning stands in `<think>` in front of the answer to the last question.
pub static CHAT: BuiltIn = turns!("qwen2", "ChatML", CHATML_TOKENS, CHATML);
