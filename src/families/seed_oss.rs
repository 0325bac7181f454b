//! Seed-OSS: Qwen 2's layers with heads of a size of their own.

use super::chat_layout::{Turns, turns};
use super::uniform::{self, Traits};
use super::{Family, SamplingDefaults, Shape, qwen2, qwen35};
use crate::data::template::{BuiltIn, ReplySyntax};
use crate::data::tokenizer::{END_NAMES, Kind, TokenizerSpec};

const TRAITS: Traits = Traits { name: "seed_oss", ..qwen2::TRAITS };

/// Seed-OSS 36B.
pub static FAMILY: Family = Family {
    name: TRAITS.name,
    title: "Seed-OSS",
    example: "hf.co/unsloth/Seed-OSS-36B-Instruct-GGUF",
    config: |gguf| uniform::config(gguf, &TRAITS),
    tokenizer: &TOKENIZER,
    template: |_| &CHAT,
    sampling: SamplingDefaults { temperature: 1.1, top_k: 0, top_p: 0.95 },
    authors_token: "",
    names: &uniform::NAMES,
    shapes: &SHAPES,
    small_shape: Shape { family: TRAITS.name, name: "seed_oss-tiny", ..qwen2::SMALL },
    metadata: |shape| uniform::metadata(shape, 1e7),
    tensors: |shape| uniform::tensors(shape, &TRAITS),
};

/// Source: transformers' configuration of ByteDance's checkpoint.
const SHAPES: [Shape; 1] = [Shape {
    family: TRAITS.name,
    name: "seed-oss-36b",
    layers: 64,
    width: 5120,
    ffn_width: 27_648,
    heads: 80,
    kv_heads: [8, 8],
    tied: false,
    vocab: 155_136,
    context_length: 524_288,
    ..uniform::DENSE
}];

static TURNS: Turns = Turns {
    start: "",
    header: ("<seed:bos>", "\n"),
    end: "<seed:eos>",
    after: "",
    assistant: "assistant",
    system_in_question: false,
    trims: false,
    thought: Some(("<seed:think>", "</seed:think>")),
};

/// `<seed:bos>ROLE\nCONTENT<seed:eos>`. Reasoning stands in `<seed:think>` in front of the answer to the last question.
pub static CHAT: BuiltIn = turns!("seed_oss", "Seed-OSS", &["<seed:bos>", "<seed:eos>"], TURNS);

/// The tokenizer of Seed-OSS, by byte-level merges.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("gpt2", Kind::ByteLevel, "llama.cpp")],
    pre: "",
    bos: "",
    end_of_text: &["<seed:eos>"],
    required: &[],
    turn_end: &["<seed:eos>"],
    control: &["<seed:bos>"],
    end_names: END_NAMES,
    reply: &REPLIES,
};

/// Marks of reasoning and function calls in replies. The calls are those of Qwen 3.5.
static REPLIES: ReplySyntax = ReplySyntax {
    thought: ("<seed:think>", "</seed:think>"),
    calls: &[("<seed:tool_call>", "</seed:tool_call>")],
    ..qwen35::REPLIES
};
