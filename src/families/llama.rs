//! Llama 3 and the models that share its architecture: Mistral 7B, SmolLM2, R1 distillations and others.

use super::chat_layout::{Turns, turns};
use super::uniform::{self, Traits};
use super::{Family, SamplingDefaults, Shape, tool_calls};
use crate::data::template::{BuiltIn, ReplySyntax};
use crate::data::tokenizer::{END_NAMES, Kind, TokenizerSpec};

pub(super) const TRAITS: Traits = Traits { name: "llama", interleaved: true, ..Traits::PLAIN };

/// Llama and its like. Mixtures such as Mixtral have experts in every layer.
pub static FAMILY: Family = Family {
    name: TRAITS.name,
    title: "Llama",
    example: "llama3.1:8b",
    config: |gguf| uniform::config(gguf, &TRAITS),
    tokenizer: &TOKENIZER,
    template: |_| &CHAT,
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
pub(super) const SMALL: Shape = Shape {
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

static TURNS: Turns = Turns {
    start: "<|begin_of_text|>",
    header: ("<|start_header_id|>", "<|end_header_id|>\n\n"),
    end: "<|eot_id|>",
    after: "",
    assistant: "assistant",
    system_in_question: false,
    trims: true,
    thought: None,
};

/// `<|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>`, behind `<|begin_of_text|>`.
pub static CHAT: BuiltIn = turns!(
    "llama",
    "Llama 3",
    &["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    TURNS
);

/// The tokenizers of Llama 2 and 3, Mistral, SmolLM and others: byte-level merges since Llama 3, SentencePiece before.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("gpt2", Kind::ByteLevel, "since Llama 3"), ("llama", Kind::Scores, "SentencePiece")],
    pre: "",
    bos: "",
    end_of_text: &["<｜end▁of▁sentence｜>", "<|end_of_text|>", "<|endoftext|>", "</s>"],
    required: &[],
    turn_end: &["<|eot_id|>", "<|im_end|>", "<|end|>"],
    control: &["<|start_header_id|>", "<|end_header_id|>", "<|im_start|>"],
    end_names: END_NAMES,
    reply: &REPLIES,
};

/// Marks of reasoning and function calls in replies: Llama 3 calls a function by `{"name": …, "parameters": {…}}` alone or after
/// `<|python_tag|>`, Mistral after `[TOOL_CALLS]`, and Hermes as Qwen does. The DeepSeek R1 distillations reason in `<think>`.
pub(super) static REPLIES: ReplySyntax = ReplySyntax {
    thought: ("<think>", "</think>"),
    thought_name: "\n",
    calls: &[("<|python_tag|>", ""), ("[TOOL_CALLS]", ""), ("<tool_call>", "</tool_call>")],
    headers: &[],
    bare_call: "{\"name\":",
    spaced: true,
    parse_calls: tool_calls::parse,
};
