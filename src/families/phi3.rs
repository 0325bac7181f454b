//! Phi 3, 3.5 and 4: queries, keys and values are one matrix, and so are gate and up. Rotary embedding may turn a part of each head, with
//! divisors of the frequencies for long sequences (LongRoPE).

use super::chat_layout::{Turns, turns};
use super::metadata::Keys;
use super::uniform::{self, Traits};
use super::{AdapterNames, Family, Shape, USUAL_SAMPLING, llama, tool_calls};
use crate::base::config::{Config, LongRope};
use crate::base::gguf::value::Value;
use crate::base::tensors::find;
use crate::base::{Error, Gguf, Module};
use crate::data::template::{BuiltIn, ReplySyntax};
use crate::data::tokenizer::{END_NAMES, Kind, TokenizerSpec};

const TRAITS: Traits =
    Traits { name: "phi3", turns_parts: true, fused: &[Module::AttnQkv, Module::FfnGateUp], ..Traits::PLAIN };

/// Phi-3 and Phi-3.5 Mini and Medium, Phi-4 and Phi-4 Mini.
pub static FAMILY: Family = Family {
    name: TRAITS.name,
    title: "Phi 3 and 4",
    example: "phi4-mini",
    config,
    tokenizer: &TOKENIZER,
    template: |config| match config.vocab {
        0..40_000 => &CHAT_3,
        40_000..150_000 => &CHAT_4,
        _ => &CHAT_4_MINI,
    },
    sampling: USUAL_SAMPLING,
    authors_token: "",
    names: &NAMES,
    shapes: &SHAPES,
    small_shape: Shape { family: TRAITS.name, name: "phi3-tiny", ..llama::SMALL },
    metadata,
    tensors: |shape| uniform::tensors(shape, &TRAITS),
};

/// Names of modules in adapter files: transformers' `Phi3ForCausalLM` and mlx-lm's `models/phi3.py`.
static NAMES: AdapterNames = AdapterNames {
    peft: |module| match module {
        Module::AttnQkv => "self_attn.qkv_proj",
        _ => (uniform::NAMES.peft)(module),
    },
    mlx: |module| match module {
        Module::AttnQkv => &["self_attn.qkv_proj"],
        _ => (uniform::NAMES.mlx)(module),
    },
    ..uniform::NAMES
};

/// The shape of the model in `gguf`; an error where the keys make no sense. Source: llama.cpp `src/models/phi3.cpp`, transformers'
/// `modeling_phi3.py`, whose windows llama.cpp leaves out.
fn config(gguf: &Gguf) -> Result<Config, Error> {
    let mut config = uniform::config(gguf, &TRAITS)?;
    let keys = Keys { gguf, architecture: TRAITS.name };
    let window = match keys.integer("attention.sliding_window")? {
        None | Some(0) => None,
        Some(_) => Some(keys.size("attention.sliding_window", u32::MAX)?),
    };
    let scale = keys.positive_or("rope.scaling.attn_factor", 1.0)?.unwrap_or(1.0);
    let pairs = config.layers.first().map_or(0, |l| l.rotated.unwrap_or(l.head_size) / 2);
    let has_factors = find(gguf, "rope_factors_short").is_some();
    for layer in &mut config.layers {
        layer.window = window;
        layer.turned_scale = scale.into();
        layer.rope_factors |= has_factors;
    }
    if has_factors {
        let original = "rope.scaling.original_context_length";
        config.rope_freq_factors = Some(uniform::rope_factors(gguf, "rope_factors_short", pairs)?);
        config.long_rope = Some(LongRope {
            factors: uniform::rope_factors(gguf, "rope_factors_long", pairs)?,
            original_context: keys.size(original, u32::MAX)?,
        });
    }
    Ok(config)
}

/// Source: transformers' configurations of Microsoft's checkpoints.
const SHAPES: [Shape; 3] = [
    Shape {
        family: TRAITS.name,
        name: "phi3.5-mini",
        layers: 32,
        width: 3072,
        ffn_width: 8192,
        heads: 32,
        kv_heads: [32, 32],
        head_sizes: [96, 96],
        tied: false,
        vocab: 32_064,
        context_length: 131_072,
        ..uniform::DENSE
    },
    Shape {
        family: TRAITS.name,
        name: "phi4-mini",
        layers: 32,
        width: 3072,
        ffn_width: 8192,
        heads: 24,
        kv_heads: [8, 8],
        vocab: 200_064,
        context_length: 131_072,
        ..uniform::DENSE
    },
    Shape {
        family: TRAITS.name,
        name: "phi4-14b",
        layers: 40,
        width: 5120,
        ffn_width: 17_920,
        heads: 40,
        kv_heads: [10, 10],
        tied: false,
        vocab: 100_352,
        context_length: 16_384,
        ..uniform::DENSE
    },
];

/// Metadata of a file of this shape. Phi-4 Mini turns three quarters of each head.
fn metadata(shape: &Shape) -> Vec<(String, Value)> {
    let mut metadata = uniform::metadata(shape, 1e4);
    let [_, size] = shape.head_sizes;
    let turned = if shape.name == "phi4-mini" { size * 3 / 4 } else { size };
    metadata.push((format!("{}.rope.dimension_count", shape.family), Value::U32(turned as u32)));
    metadata
}

/// Turns of Phi-3, each with line breaks around its text.
static TURNS_3: Turns = Turns { header: ("<|", "|>\n"), after: "\n", ..TURNS_4_MINI };

static TURNS_4_MINI: Turns = Turns {
    start: "",
    header: ("<|", "|>"),
    end: "<|end|>",
    after: "",
    assistant: "assistant",
    system_in_question: false,
    trims: false,
    thought: None,
};

static TURNS_4: Turns = Turns { header: ("<|im_start|>", "<|im_sep|>"), end: "<|im_end|>", ..TURNS_4_MINI };

/// `<|ROLE|>\nCONTENT<|end|>\n`.
pub static CHAT_3: BuiltIn = turns!("phi3", "Phi 3", &["<|user|>", "<|assistant|>", "<|end|>"], TURNS_3);

/// `<|ROLE|>CONTENT<|end|>`.
pub static CHAT_4_MINI: BuiltIn =
    turns!("phi3", "Phi 4 Mini", &["<|user|>", "<|assistant|>", "<|end|>"], TURNS_4_MINI);

/// `<|im_start|>ROLE<|im_sep|>CONTENT<|im_end|>`.
pub static CHAT_4: BuiltIn = turns!("phi3", "Phi 4", &["<|im_start|>", "<|im_sep|>", "<|im_end|>"], TURNS_4);

/// The tokenizers of Phi: SentencePiece in Phi-3, by byte-level merges in Phi-4.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("gpt2", Kind::ByteLevel, "Phi-4"), ("llama", Kind::Scores, "SentencePiece")],
    pre: "",
    bos: "",
    end_of_text: &["<|endoftext|>"],
    required: &[],
    turn_end: &["<|end|>", "<|im_end|>"],
    control: &["<|system|>", "<|user|>", "<|assistant|>", "<|im_start|>", "<|im_sep|>"],
    end_names: END_NAMES,
    reply: &REPLIES,
};

/// Marks of function calls in replies: a list of calls as JSON behind `<|tool_call|>`. Phi-4's reasoning models think in `<think>`.
static REPLIES: ReplySyntax = ReplySyntax {
    calls: &[("<|tool_call|>", "<|/tool_call|>"), ("<tool_call>", "</tool_call>")],
    ..tool_calls::QWEN
};
