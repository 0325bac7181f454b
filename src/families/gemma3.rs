//! Gemma 3 text models: 270M, FunctionGemma, 1B, 4B, 12B and 27B.

use super::chat_layout::{Turns, turns};
use super::metadata::{Keys, WIDEST};
use super::random::{Tensors, q4_k_m};
use super::uniform::{self, head_size, heads, layer_count, sliding, stretch};
use super::{Family, SamplingDefaults, Shape, gemma4};
use crate::base::config::{Activation, Config, LayerConfig};
use crate::base::gguf::value::Value;
use crate::base::tensors::require;
use crate::base::{Error, GgmlType, Gguf};
use crate::data::template::{BuiltIn, ReplySyntax};
use crate::data::tokenizer::{END_NAMES, Kind, TokenizerSpec};

/// `general.architecture`.
const NAME: &str = "gemma3";

/// Gemma 3.
pub static FAMILY: Family = Family {
    name: NAME,
    title: "Gemma 3",
    example: "gemma3:1b",
    config,
    tokenizer: &TOKENIZER,
    template: |_| &CHAT,
    sampling: SamplingDefaults { temperature: 1.0, top_k: 64, top_p: 0.95 },
    authors_token: "",
    names: &uniform::NAMES,
    shapes: &SHAPES,
    small_shape: SMALL,
    metadata,
    tensors: |shape| tensors(shape, true),
};

static TURNS: Turns = Turns {
    start: "<bos>",
    header: ("<start_of_turn>", "\n"),
    end: "<end_of_turn>",
    after: "\n",
    assistant: "model",
    system_in_question: true,
    trims: true,
    thought: None,
};

/// `<start_of_turn>ROLE\nCONTENT<end_of_turn>\n` behind `<bos>`. The system message stands in front of the first question.
pub static CHAT: BuiltIn = turns!("gemma3", "Gemma 3", &["<start_of_turn>", "<end_of_turn>"], TURNS);

/// The tokenizer, SentencePiece by scores, of Gemma 3 and the models made from it.
pub static TOKENIZER: TokenizerSpec = TokenizerSpec {
    models: &[("llama", Kind::Scores, "SentencePiece")],
    pre: "",
    bos: "<bos>",
    end_of_text: &["<eos>"],
    required: &[],
    turn_end: &["<end_of_turn>"],
    control: &["<start_of_turn>", "<eos>"],
    end_names: END_NAMES,
    reply: &REPLIES,
};

/// Marks of function calls in replies: FunctionGemma writes
/// `<start_function_call>call:NAME{key:<escape>text<escape>,number:1}<end_function_call>`.
static REPLIES: ReplySyntax = ReplySyntax {
    // Gemma 3 does not reason; distillations on it use these marks.
    thought: ("<think>", "</think>"),
    thought_name: "\n",
    calls: &[("<start_function_call>", "<end_function_call>")],
    headers: &[],
    bare_call: "",
    spaced: true,
    parse_calls: |text, _| gemma4::call(text, "<escape>").into_iter().collect(),
};

/// Every so many layers one has full attention, where the file does not say which.
const FULL_EVERY: usize = 6;
/// Layers of the 27B model, whose scores are scaled by the model's width per head.
const LAYERS_27B: usize = 62;

/// The shape of the text model in `gguf`; an error where the keys make no sense. Source: llama.cpp `src/models/gemma3.cpp`, and Ollama's
/// names of the rotary bases.
fn config(gguf: &Gguf) -> Result<Config, Error> {
    let keys = Keys { gguf, architecture: NAME };
    let count = layer_count(&keys)?;
    let width = keys.size("embedding_length", WIDEST)?;
    let vocab = require(gguf, "token_embd", &[width])?.shape.get(1).copied().unwrap_or(1);
    let (heads, kv_heads) = heads(&keys)?;
    let head_size = head_size(&keys, width, heads)?;
    let score_width = if count == LAYERS_27B { width / heads } else { head_size };
    let window = keys.size("attention.sliding_window", u32::MAX)?;
    let full_base = rope_base(&keys, ["rope.freq_base", "rope.global.freq_base"], 1e6)?;
    let sliding_base = rope_base(&keys, ["rope.freq_base_swa", "rope.local.freq_base"], 1e4)?;
    let stretch = stretch(&keys, full_base, true)?;
    let ffn_width = keys.sizes("feed_forward_length", count, WIDEST)?;
    let is_sliding = sliding(&keys, count, FULL_EVERY)?;
    let layer = |i: usize| LayerConfig {
        window: is_sliding[i].then_some(window),
        heads,
        kv_heads,
        head_size,
        ffn_width: ffn_width[i],
        rope_base: if is_sliding[i] { sliding_base } else { full_base },
        rope_divisor: if is_sliding[i] { 1.0 } else { stretch.divisor },
        yarn: stretch.yarn.filter(|_| !is_sliding[i]),
        qk_norm: true,
        score_scale: (score_width as f64).sqrt().recip(),
        post_norms: true,
        activation: Activation::Gelu,
        ..LayerConfig::default()
    };
    Ok(Config {
        architecture: NAME,
        width,
        vocab,
        embedding_scale: (width as f64).sqrt() as f32,
        rms_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
        context_length: keys.size("context_length", u32::MAX)?,
        layers: (0..count).map(layer).collect(),
        // Ollama's files have a cap (`final_logit_softcapping`) that Gemma 3 does not apply.
        ..Config::default()
    })
}

/// The base of the rotary frequencies, by llama.cpp's or Ollama's key.
fn rope_base(keys: &Keys, names: [&str; 2], default: f32) -> Result<f64, Error> {
    let name = names.into_iter().find(|name| keys.gguf.value(&keys.key(name)).is_some());
    Ok(name.map_or(Ok(default), |name| keys.positive(name))?.into())
}

pub(super) const SMALLEST: Shape = Shape {
    family: NAME,
    name: "gemma3-270m",
    layers: 18,
    width: 640,
    ffn_width: 2048,
    heads: 4,
    kv_heads: [1, 1],
    head_sizes: [256, 256],
    full_every: 6,
    window: 512,
    vocab: 262_144,
    context_length: 32_768,
    ..uniform::DENSE
};

/// The published sizes. Source: transformers' configurations of Google's checkpoints.
const SHAPES: [Shape; 3] = [
    SMALLEST,
    Shape { name: "gemma3-1b", layers: 26, width: 1152, ffn_width: 6912, ..SMALLEST },
    Shape {
        name: "gemma3-4b",
        layers: 34,
        width: 2560,
        ffn_width: 10_240,
        heads: 8,
        kv_heads: [4, 4],
        window: 1024,
        vocab: 262_208,
        context_length: 131_072,
        ..SMALLEST
    },
];

/// A few megabytes, for software renderers.
pub(super) const SMALL: Shape = Shape {
    name: "gemma3-tiny",
    layers: 6,
    width: 256,
    ffn_width: 768,
    heads: 2,
    head_sizes: [64, 64],
    full_every: 3,
    window: 64,
    vocab: 2048,
    context_length: 1024,
    ..SMALLEST
};

/// Metadata of a file of this shape.
fn metadata(shape: &Shape) -> Vec<(String, Value)> {
    let mut metadata = uniform::metadata(shape, 1e6);
    let mut add = |key: &str, value: Value| metadata.push((format!("{NAME}.{key}"), value));
    add("attention.sliding_window", Value::U32(shape.window as u32));
    add("attention.sliding_window_pattern", Value::U32(shape.full_every as u32));
    add("rope.freq_base_swa", Value::F32(1e4));
    metadata
}

/// Tensors of a file of this shape, with norms of queries and keys or without.
pub(super) fn tensors(shape: &Shape, qk_norm: bool) -> Tensors {
    let (d, f, q4) = (shape.width, shape.ffn_width, GgmlType::Q4_K);
    let [_, head_size] = shape.head_sizes;
    let (queries, keys) = (shape.heads * head_size, shape.kv_heads[1] * head_size);
    let mut tensors = Tensors::new();
    tensors.matrix("token_embd".into(), &[d, shape.vocab], GgmlType::Q6_K);
    tensors.vector("output_norm".into(), d, 1.0);
    for layer in 0..shape.layers {
        let more_bits = q4_k_m(layer, shape.layers);
        let name = |last: &str| format!("blk.{layer}.{last}");
        for norm in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"] {
            tensors.vector(name(norm), d, 1.0);
        }
        for norm in ["attn_q_norm", "attn_k_norm"].into_iter().filter(|_| qk_norm) {
            tensors.vector(name(norm), head_size, 1.0);
        }
        tensors.matrix(name("attn_q"), &[d, queries], q4);
        tensors.matrix(name("attn_k"), &[d, keys], q4);
        tensors.matrix(name("attn_v"), &[d, keys], more_bits);
        tensors.matrix(name("attn_output"), &[queries, d], q4);
        tensors.matrix(name("ffn_gate"), &[d, f], q4);
        tensors.matrix(name("ffn_up"), &[d, f], q4);
        tensors.matrix(name("ffn_down"), &[f, d], more_bits);
    }
    tensors
}
