//! SmolLM3: Llama's layers, of which every fourth has no rotary embedding.

use super::chat_layout::{CHATML, CHATML_TOKENS, turns};
use super::uniform::{self, Traits};
use super::{Family, SamplingDefaults, Shape, llama, tool_calls};
use crate::base::config::Config;
use crate::base::{Error, Gguf};
use crate::data::template::BuiltIn;
use crate::data::tokenizer::{END_NAMES, Kind, TokenizerSpec};

const TRAITS: Traits = Traits { name: "smollm3", ..llama::TRAITS };
/// The last of so many layers has no rotary embedding. No key says so.
const STILL_EVERY: usize = 4;

/// SmolLM3 3B.
pub static FAMILY: Family = Family {
    name: TRAITS.name,
    title: "SmolLM3",
    example: "hf.co/ggml-org/SmolLM3-3B-GGUF",
    config,
    tokenizer: &TOKENIZER,
    template: |_| &CHAT,
    sampling: SamplingDefaults { temperature: 0.6, top_k: 0, top_p: 0.95 },
    authors_token: "",
    names: &uniform::NAMES,
    shapes: &SHAPES,
    small_shape: Shape { family: TRAITS.name, name: "smollm3-tiny", ..llama::SMALL },
    metadata: |shape| uniform::metadata(shape, 5e6),
    tensors: |shape| uniform::tensors(shape, &TRAITS),
};

/// The shape of the model in `gguf`; an error where the keys make no sense. Source: llama.cpp `src/models/smollm3.cpp`.
fn config(gguf: &Gguf) -> Result<Config, Error> {
    let mut config = uniform::config(gguf, &TRAITS)?;
    let still = config.layers.iter_mut().skip(STILL_EVERY - 1).step_by(STILL_EVERY);
    still.for_each(|layer| layer.turns = false);
    Ok(config)
}

/// Source: transformers' configuration of Hugging Face's checkpoint.
const SHAPES: [Shape; 1] = [Shape {
    family: TRAITS.name,
    name: "smollm3-3b",
    layers: 36,
    width: 2048,
    ffn_width: 11_008,
    heads: 16,
    kv_heads: [4, 4],
    full_every: STILL_EVERY,
    vocab: 128_256,
    context_length: 65_536,
    ..uniform::DENSE
}];

/// ChatML. Reasoning stands in `<think>` in front of the answer to the last question.
pub static CHAT: BuiltIn = turns!("smollm3", "ChatML", CHATML_TOKENS, CHATML);

/// The tokenizer of SmolLM3: Llama 3's, with the marks of ChatML.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("gpt2", Kind::ByteLevel, "llama.cpp")],
    pre: "",
    bos: "",
    end_of_text: &["<|end_of_text|>"],
    required: &[],
    turn_end: &["<|im_end|>"],
    control: &["<|im_start|>"],
    end_names: END_NAMES,
    reply: &tool_calls::QWEN,
};
