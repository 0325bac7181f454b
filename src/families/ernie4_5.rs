//! ERNIE 4.5: Llama's layers, whose rotary pairs lie side by side in transformers too.

use super::role_marks::{Marks, marks};
use super::uniform::{self, Traits};
use super::{Family, SamplingDefaults, Shape, llama, tool_calls};
use crate::data::template::BuiltIn;
use crate::data::tokenizer::{END_NAMES, Kind, TokenizerSpec};

const TRAITS: Traits = Traits { name: "ernie4_5", interleaved_elsewhere: true, ..llama::TRAITS };

/// ERNIE 4.5 0.3B. The larger models of that name are mixtures of another architecture.
pub static FAMILY: Family = Family {
    name: TRAITS.name,
    title: "ERNIE 4.5",
    example: "hf.co/unsloth/ERNIE-4.5-0.3B-PT-GGUF",
    config: |gguf| uniform::config(gguf, &TRAITS),
    tokenizer: &TOKENIZER,
    template: |_| &CHAT,
    sampling: SamplingDefaults { temperature: 0.8, top_k: 0, top_p: 0.8 },
    authors_token: "",
    names: &uniform::NAMES,
    shapes: &SHAPES,
    small_shape: Shape { family: TRAITS.name, name: "ernie4_5-tiny", ..llama::SMALL },
    metadata: |shape| uniform::metadata(shape, 5e5),
    tensors: |shape| uniform::tensors(shape, &TRAITS),
};

/// Source: transformers' configuration of Baidu's checkpoint.
const SHAPES: [Shape; 1] = [Shape {
    family: TRAITS.name,
    name: "ernie4.5-0.3b",
    layers: 18,
    width: 1024,
    ffn_width: 3072,
    heads: 16,
    kv_heads: [2, 2],
    vocab: 103_424,
    context_length: 131_072,
    ..uniform::DENSE
}];

static MARKS: Marks = Marks {
    start: "<|begin_of_sentence|>",
    system: ("", "\n"),
    user: ("User: ", "\n"),
    assistant: ("Assistant: ", "<|end_of_sentence|>"),
};

/// `<|begin_of_sentence|>SYSTEM\nUser: QUESTION\nAssistant: ANSWER<|end_of_sentence|>`.
pub static CHAT: BuiltIn =
    marks!("ernie4_5", "ERNIE 4.5", &["<|begin_of_sentence|>", "<|end_of_sentence|>"], MARKS);

/// The tokenizer of ERNIE 4.5, SentencePiece.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("llama", Kind::Scores, "SentencePiece"), ("gpt2", Kind::ByteLevel, "llama.cpp")],
    pre: "",
    bos: "",
    end_of_text: &["</s>"],
    required: &[],
    turn_end: &["<|end_of_sentence|>", "</s>"],
    control: &["<|begin_of_sentence|>", "<|end_of_sentence|>"],
    end_names: END_NAMES,
    reply: &tool_calls::QWEN,
};
