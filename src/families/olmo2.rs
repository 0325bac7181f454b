//! OLMo 2 and 3: norms behind the blocks alone, and of whole rows of queries and keys. OLMo 3 has windows, and YaRN in the other layers.

use super::chat_layout::{CHATML, CHATML_TOKENS, turns};
use super::metadata::Keys;
use super::uniform::{self, Norms, Traits, sliding};
use super::{Family, SamplingDefaults, Shape, llama, tool_calls};
use crate::base::config::Config;
use crate::base::{Error, Gguf};
use crate::data::template::BuiltIn;
use crate::data::tokenizer::{END_NAMES, Kind, TokenizerSpec};

const TRAITS: Traits =
    Traits { name: "olmo2", qk_norm: true, qk_norm_of_rows: true, norms: Norms::Behind, ..Traits::PLAIN };
/// The last of so many layers has no window, where the file does not say which.
const FULL_EVERY: usize = 4;

/// OLMo 2 and 3 from 1B to 32B.
pub static FAMILY: Family = Family {
    name: TRAITS.name,
    title: "OLMo 2 and 3",
    example: "olmo2:7b",
    config,
    tokenizer: &TOKENIZER,
    template: |_| &CHAT,
    sampling: SamplingDefaults { temperature: 0.6, top_k: 0, top_p: 0.95 },
    authors_token: "",
    names: &uniform::NAMES,
    shapes: &SHAPES,
    small_shape: Shape { family: TRAITS.name, name: "olmo2-tiny", ..llama::SMALL },
    metadata: |shape| uniform::metadata(shape, 5e5),
    tensors: |shape| uniform::tensors(shape, &TRAITS),
};

/// The shape of the model in `gguf`; an error where the keys make no sense. Source: llama.cpp `src/models/olmo2.cpp`.
fn config(gguf: &Gguf) -> Result<Config, Error> {
    let mut config = uniform::config(gguf, &TRAITS)?;
    let keys = Keys { gguf, architecture: TRAITS.name };
    if matches!(keys.integer("attention.sliding_window")?, None | Some(0)) {
        return Ok(config);
    }
    let window = keys.size("attention.sliding_window", u32::MAX)?;
    let is_sliding = sliding(&keys, config.layers.len(), FULL_EVERY)?;
    let base = keys.positive_or("rope.freq_base_swa", 0.0)?.filter(|base| *base > 0.0);
    for (layer, _) in config.layers.iter_mut().zip(is_sliding).filter(|(_, is_sliding)| *is_sliding) {
        layer.window = Some(window);
        layer.yarn = None;
        layer.rope_base = base.map_or(layer.rope_base, f64::from);
    }
    Ok(config)
}

/// Source: transformers' configurations of Ai2's checkpoints.
const SHAPES: [Shape; 1] = [Shape {
    family: TRAITS.name,
    name: "olmo2-7b",
    layers: 32,
    width: 4096,
    ffn_width: 11_008,
    heads: 32,
    kv_heads: [32, 32],
    tied: false,
    vocab: 100_352,
    context_length: 4096,
    ..uniform::DENSE
}];

/// ChatML, as OLMo 3 has it. Reasoning stands in `<think>` in front of the answer to the last question.
pub static CHAT: BuiltIn = turns!("olmo2", "ChatML", CHATML_TOKENS, CHATML);

/// The tokenizer of OLMo 2 and 3, by byte-level merges.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("gpt2", Kind::ByteLevel, "llama.cpp and Ollama")],
    pre: "",
    bos: "",
    end_of_text: &["<|endoftext|>"],
    required: &[],
    turn_end: &["<|im_end|>", "<|endoftext|>"],
    control: &["<|im_start|>"],
    end_names: END_NAMES,
    reply: &tool_calls::QWEN,
};
