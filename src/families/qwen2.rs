//! Qwen 2 and 2.5, and the mixtures of experts of Qwen 1.5 and 2. Their tokenizer is that of Qwen 3.

use super::chat_layout::{CHATML, CHATML_TOKENS, turns};
use super::metadata::{Keys, WIDEST};
pub use super::qwen3::TOKENIZER;
use super::uniform::{self, Traits};
use super::{Family, SamplingDefaults, Shape};
use crate::base::config::{Config, Experts, Gating};
use crate::base::{Error, Gguf, Module};
use crate::data::template::BuiltIn;

pub(super) const TRAITS: Traits =
    Traits { name: "qwen2", biases: &[Module::AttnQ, Module::AttnK, Module::AttnV], ..Traits::PLAIN };

const MIXTURE: Traits = Traits { name: "qwen2moe", shared_expert: true, ..TRAITS };

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

/// Qwen 1.5 MoE A2.7B and Qwen 2 57B-A14B.
pub static FAMILY_MOE: Family = Family {
    name: MIXTURE.name,
    title: "Qwen 2 mixture of experts",
    example: "hf.co/Qwen/Qwen2-57B-A14B-Instruct-GGUF",
    config: mixture,
    template: |_| &CHAT_MOE,
    shapes: &SHAPES_MOE,
    small_shape: SMALL_MOE,
    tensors: |shape| uniform::tensors(shape, &MIXTURE),
    ..FAMILY
};

/// The shape of the mixture in `gguf`; an error where the keys make no sense. Source: llama.cpp `src/models/qwen2moe.cpp`.
fn mixture(gguf: &Gguf) -> Result<Config, Error> {
    let mut config = uniform::config(gguf, &MIXTURE)?;
    let keys = Keys { gguf, architecture: MIXTURE.name };
    let width = keys.size("expert_feed_forward_length", WIDEST)?;
    let experts = Experts { width, shared: true, gating: Gating::All, ..uniform::required_experts(&keys)? };
    let ffn_width = uniform::shared_width(&keys)?;
    for layer in &mut config.layers {
        layer.experts = Some(experts);
        layer.ffn_width = ffn_width;
    }
    Ok(config)
}

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

/// Sources as above. `shared_ffn_width` is that of the shared expert.
const SHAPES_MOE: [Shape; 2] = [
    Shape {
        family: MIXTURE.name,
        name: "qwen1.5-moe-a2.7b",
        width: 2048,
        ffn_width: 5632,
        shared_ffn_width: 5632,
        heads: 16,
        kv_heads: [16, 16],
        head_sizes: [128, 128],
        experts: Some([60, 4, 1408]),
        tied: false,
        context_length: 8192,
        ..SMALLEST
    },
    Shape {
        family: MIXTURE.name,
        name: "qwen2-57b-a14b",
        layers: 28,
        width: 3584,
        ffn_width: 18_944,
        shared_ffn_width: 20_480,
        heads: 28,
        kv_heads: [4, 4],
        head_sizes: [128, 128],
        experts: Some([64, 8, 2560]),
        tied: false,
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

const SMALL_MOE: Shape = Shape {
    family: MIXTURE.name,
    name: "qwen2moe-tiny",
    shared_ffn_width: 512,
    experts: Some([8, 2, 256]),
    tied: false,
    ..SMALL
};

/// ChatML. Reasoning stands in `<think>` in front of the answer to the last question.
pub static CHAT: BuiltIn = turns!("qwen2", "ChatML", CHATML_TOKENS, CHATML);

/// The layout of the mixtures of experts.
pub static CHAT_MOE: BuiltIn = turns!("qwen2moe", "ChatML", CHATML_TOKENS, CHATML);
