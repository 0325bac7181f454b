//! Hunyuan: Qwen 3's layers with the norms of queries and keys behind the rotary embedding.

use super::role_marks::{Marks, marks};
use super::uniform::{self, Traits};
use super::{Family, SamplingDefaults, Shape, qwen3, tool_calls};
use crate::data::template::BuiltIn;
use crate::data::tokenizer::{END_NAMES, Kind, TokenizerSpec};

const TRAITS: Traits = Traits { name: "hunyuan-dense", qk_norm_behind: true, ..qwen3::DENSE };

/// Hunyuan 0.5B, 1.8B, 4B and 7B of August 2025, and Hunyuan-MT.
pub static FAMILY: Family = Family {
    name: TRAITS.name,
    title: "Hunyuan",
    example: "hf.co/bartowski/tencent_Hunyuan-4B-Instruct-GGUF",
    config: |gguf| uniform::config(gguf, &TRAITS),
    tokenizer: &TOKENIZER,
    template: |_| &CHAT,
    sampling: SamplingDefaults { temperature: 0.7, top_k: 20, top_p: 0.8 },
    authors_token: "",
    names: &uniform::NAMES,
    shapes: &SHAPES,
    small_shape: Shape { family: TRAITS.name, name: "hunyuan-tiny", ..qwen3::SMALL },
    metadata: |shape| uniform::metadata(shape, 1e7),
    tensors: |shape| uniform::tensors(shape, &TRAITS),
};

/// Source: transformers' configurations of Tencent's checkpoints.
const SHAPES: [Shape; 2] = [
    Shape {
        family: TRAITS.name,
        name: "hunyuan-1.8b",
        layers: 32,
        width: 2048,
        ffn_width: 6144,
        heads: 16,
        kv_heads: [4, 4],
        vocab: 120_818,
        context_length: 262_144,
        ..uniform::DENSE
    },
    Shape {
        family: TRAITS.name,
        name: "hunyuan-7b",
        layers: 32,
        width: 4096,
        ffn_width: 14_336,
        heads: 32,
        kv_heads: [8, 8],
        vocab: 128_167,
        context_length: 262_144,
        ..uniform::DENSE
    },
];

static MARKS: Marks = Marks {
    start: "<｜hy_begin▁of▁sentence｜>",
    system: ("", "<｜hy_place▁holder▁no▁3｜>"),
    user: ("<｜hy_User｜>", ""),
    assistant: ("<｜hy_Assistant｜>", "<｜hy_place▁holder▁no▁2｜>"),
};

/// `<｜hy_begin▁of▁sentence｜>SYSTEM<｜hy_place▁holder▁no▁3｜><｜hy_User｜>QUESTION<｜hy_Assistant｜>ANSWER<｜hy_place▁holder▁no▁2｜>`.
pub static CHAT: BuiltIn = marks!(
    "hunyuan-dense",
    "Hunyuan",
    &["<｜hy_begin▁of▁sentence｜>", "<｜hy_User｜>", "<｜hy_Assistant｜>", "<｜hy_place▁holder▁no▁2｜>"],
    MARKS
);

/// The tokenizer of Hunyuan, by byte-level merges.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("gpt2", Kind::ByteLevel, "llama.cpp")],
    pre: "",
    bos: "",
    end_of_text: &["<｜hy_end▁of▁sentence｜>"],
    required: &[],
    turn_end: &["<｜hy_place▁holder▁no▁2｜>"],
    control: &[
        "<｜hy_begin▁of▁sentence｜>",
        "<｜hy_User｜>",
        "<｜hy_Assistant｜>",
        "<｜hy_place▁holder▁no▁3｜>",
    ],
    end_names: END_NAMES,
    reply: &tool_calls::QWEN,
};
