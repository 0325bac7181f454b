//! EXAONE 4: norms behind the blocks alone, and of every head of queries and keys. Where layers have windows, the others have no rotary
//! embedding.

use super::chat_layout::{Turns, turns};
use super::metadata::Keys;
use super::uniform::{self, Norms, Traits, sliding};
use super::{Family, SamplingDefaults, Shape, llama, tool_calls};
use crate::base::config::Config;
use crate::base::gguf::value::Value;
use crate::base::{Error, Gguf};
use crate::data::template::BuiltIn;
use crate::data::tokenizer::{END_NAMES, Kind, TokenizerSpec};

const TRAITS: Traits = Traits { name: "exaone4", qk_norm: true, norms: Norms::Behind, ..Traits::PLAIN };
/// The last of so many layers has no window, where the file does not say which.
const FULL_EVERY: usize = 4;

/// EXAONE 4.0 1.2B and 32B.
pub static FAMILY: Family = Family {
    name: TRAITS.name,
    title: "EXAONE 4",
    example: "hf.co/LGAI-EXAONE/EXAONE-4.0-1.2B-GGUF",
    config,
    tokenizer: &TOKENIZER,
    template: |_| &CHAT,
    sampling: SamplingDefaults { temperature: 0.6, top_k: 0, top_p: 0.95 },
    authors_token: "",
    names: &uniform::NAMES,
    shapes: &SHAPES,
    small_shape: Shape { family: TRAITS.name, name: "exaone4-tiny", ..llama::SMALL },
    metadata,
    tensors: |shape| uniform::tensors(shape, &TRAITS),
};

/// The shape of the model in `gguf`; an error where the keys make no sense. Source: transformers' `modeling_exaone4.py`; llama.cpp
/// reads the windows of models of 64 layers alone.
fn config(gguf: &Gguf) -> Result<Config, Error> {
    let mut config = uniform::config(gguf, &TRAITS)?;
    let keys = Keys { gguf, architecture: TRAITS.name };
    if matches!(keys.integer("attention.sliding_window")?, None | Some(0)) {
        return Ok(config);
    }
    let window = keys.size("attention.sliding_window", u32::MAX)?;
    let is_sliding = sliding(&keys, config.layers.len(), FULL_EVERY)?;
    for (layer, is_sliding) in config.layers.iter_mut().zip(is_sliding) {
        layer.window = is_sliding.then_some(window);
        layer.turns = is_sliding;
    }
    Ok(config)
}

/// Source: transformers' configurations of LG's checkpoints.
const SHAPES: [Shape; 1] = [Shape {
    family: TRAITS.name,
    name: "exaone4-32b",
    layers: 64,
    width: 5120,
    ffn_width: 27_392,
    heads: 40,
    kv_heads: [8, 8],
    full_every: FULL_EVERY,
    window: 4096,
    tied: false,
    vocab: 102_400,
    context_length: 131_072,
    ..uniform::DENSE
}];

/// Metadata of a file of this shape.
fn metadata(shape: &Shape) -> Vec<(String, Value)> {
    let mut metadata = uniform::metadata(shape, 1e6);
    if shape.window > 0 {
        metadata.push((format!("{}.attention.sliding_window", TRAITS.name), Value::U32(shape.window as u32)));
    }
    metadata
}

static TURNS: Turns = Turns {
    start: "",
    header: ("[|", "|]\n"),
    end: "[|endofturn|]",
    after: "\n",
    assistant: "assistant",
    system_in_question: false,
    trims: false,
    thought: Some(("<think>\n", "\n</think>\n\n")),
};

/// `[|ROLE|]\nCONTENT[|endofturn|]\n`. Reasoning stands in `<think>` in front of the answer to the last question.
pub static CHAT: BuiltIn =
    turns!("exaone4", "EXAONE 4", &["[|user|]", "[|assistant|]", "[|endofturn|]"], TURNS);

/// The tokenizer of EXAONE 4, by byte-level merges.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("gpt2", Kind::ByteLevel, "llama.cpp")],
    pre: "",
    bos: "",
    end_of_text: &["[|endofturn|]"],
    required: &[],
    turn_end: &["[|endofturn|]"],
    control: &["[|system|]", "[|user|]", "[|assistant|]", "[|tool|]"],
    end_names: END_NAMES,
    reply: &tool_calls::QWEN,
};
